// Creates elements. Text always becomes a text node, so no text can add HTML, styles or event handlers.

const ATTRIBUTES =
  /^(class|id|title|href|type|for|role|scope|tabindex|autocomplete|spellcheck|autocapitalize|maxlength|min|max|rows|value|selected|disabled|hidden|open|data-[a-z]+|aria-[a-z]+)$/;
const SHAPES = /^(viewBox|d|x|y|x1|x2|y1|y2|cx|cy|r|class|role|text-anchor|aria-[a-z]+)$/;
const SVG = "http://www.w3.org/2000/svg";

/** Creates an HTML element. Children are elements or texts; null, undefined and false are skipped. */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, ATTRIBUTES, children);
}

/** Creates an SVG element. */
export function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, SHAPES, children);
}

function filled(made, attributes, allowed, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (!allowed.test(name)) throw new Error(`the attribute ${name} is not allowed`);
    if (name === "href" && !String(value).startsWith("#")) throw new Error("a link must lead to a fragment of this page");
    made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Sets the text of an element only if it differs, so that a selection stays and screen readers don't repeat the text. */
export function say(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

export function show(target, visible) {
  if (target.hidden === visible) target.hidden = !visible;
}

export function button(label, onClick, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, label);
  made.addEventListener("click", onClick);
  return made;
}

/** Creates a labelled select element; `onChange` receives the selected value. */
export function choice(label, id, options, onChange) {
  const select = element("select", { id }, ...options.map(([value, text]) => element("option", { value }, text)));
  select.addEventListener("change", () => onChange(select.value));
  return { select, element: element("span", { class: "field" }, element("label", { for: id }, label), select) };
}
