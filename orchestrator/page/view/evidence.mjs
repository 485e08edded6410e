// View of the evidence of one verdict, for the owner and for contributors.

import {
  CHECK_COLUMNS,
  FINDING_COLUMNS,
  ROW_COLUMNS,
  checkRows,
  evidenceFields,
  evidenceRows,
  findingRows,
  workTitle,
} from "../rows/evidence.mjs";
import { element, show } from "./dom.mjs";
import { Fields, Panel } from "./panel.mjs";
import { Table, dress } from "./table.mjs";

/** Creates the view. `back` is the link to the list, `[href, text]`; `more` are further elements below the fields. */
export function evidenceView(key, back, ...more) {
  const fields = new Fields();
  const findings = new Table({ caption: "Findings, with row and token", columns: FINDING_COLUMNS, empty: "No check found a fault." });
  const checks = new Table({ caption: "Checks of the file", columns: CHECK_COLUMNS, empty: "The audit file names no check." });
  const rows = new Table({ caption: "Rows of the file", columns: ROW_COLUMNS, empty: "No row was recomputed." });
  const panel = new Panel("Evidence", element("p", {}, element("code", { class: "whole" }, key)), fields.element, ...more);
  const below = [new Panel("Findings", findings.element), new Panel("Checks", checks.element), new Panel("Rows", rows.element)];
  below.forEach((each) => show(each.element, false));
  return {
    title: workTitle(key),
    element: element("div", {}, element("p", {}, element("a", { href: back[0] }, back[1])), panel.element, below.map((each) => each.element)),
    show(evidence, now) {
      below.forEach((each) => show(each.element, true));
      fields.show(evidenceFields(evidence, now), dress);
      findings.show(findingRows(evidence));
      checks.show(checkRows(evidence));
      rows.show(evidenceRows(evidence));
    },
    failed: (error) => panel.failed(error),
  };
}
