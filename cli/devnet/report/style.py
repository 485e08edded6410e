"""The page's style sheet: light and dark, colours that people tell apart who see few of them."""

STYLE = """
:root { color-scheme: light dark;
  --paper: #fbfbf9; --card: #ffffff; --ink: #1d2430; --soft: #646e7d; --rule: #e3e5e8; --track: #f1f2f4;
  --good: #15803d; --bad: #c02626; --good-paper: #e9f6ee; --bad-paper: #fdeeee;
  --reward: #b45309; --greedy: #1d4ed8; --pass: #0f766e;
  --generate: #2f6fde; --verify: #c77700; --learn: #8b3fc4; --broadcast: #0f8f83; --wait: #7c8798;
  --accepted: #2f9e5b; --rejected: #d99a1c; --forged: #cf3434; --expired: #9aa3af; --open: #c8ced6; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #12151b; --card: #1a1f27; --ink: #e5e8ec; --soft: #98a2b0; --rule: #2c333d; --track: #222832;
  --good: #4cc37b; --bad: #f47272; --good-paper: #16291f; --bad-paper: #331b1d;
  --reward: #f0a04b; --greedy: #7ba6ff; --pass: #4fd0c1;
  --generate: #6ea0ff; --verify: #f0b04d; --learn: #c08af0; --broadcast: #3fc7b8; --wait: #8b96a6;
  --accepted: #46b874; --rejected: #e0ad45; --forged: #ee6363; --expired: #7d8794; --open: #4a525e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 16px; margin: 0 0 2px; }
p { margin: 0; } .note { color: var(--soft); font-size: 13.5px; margin-bottom: 14px; }
.about { color: var(--soft); margin-bottom: 22px; }
.verdict { border-radius: 10px; padding: 14px 18px; margin-bottom: 18px; }
.verdict.good { background: var(--good-paper); } .verdict.bad { background: var(--bad-paper); }
.verdict ul { list-style: none; margin: 0; padding: 0; } .verdict li { padding: 2px 0; }
.verdict b { display: inline-block; width: 1.6em; } .met { color: var(--good); } .missed { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 12px; margin-bottom: 18px; }
.tile, section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.tile { padding: 14px 16px; } .tile strong { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(520px, 100%), 1fr)); gap: 18px; }
section { padding: 18px 20px; min-width: 0; margin-bottom: 18px; } .grid2 section { margin: 0; }
.grid2 { margin-bottom: 18px; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); font-variant-numeric: tabular-nums; }
svg text.axis { fill: var(--soft); font-size: 11px; } svg text.name { font-weight: 600; }
svg .line { fill: none; stroke-width: 2.5; stroke-linejoin: round; }
svg .raw { fill: none; stroke-width: 1; opacity: 0.35; }
svg .grid { stroke: var(--rule); stroke-width: 1; } svg .track { fill: var(--track); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: 6px 14px 6px 0; border-bottom: 1px solid var(--rule); white-space: nowrap; }
tr:last-child td { border-bottom: 0; } td.wide { white-space: normal; min-width: 180px; }
th.number, td.number { text-align: right; }
.key { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); margin: 0 0 10px; }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
.stack { display: flex; height: 14px; border-radius: 4px; overflow: hidden; background: var(--track);
  min-width: 140px; }
.stack i { display: block; height: 100%; }
.meter { position: relative; display: inline-block; width: 110px; height: 10px; border-radius: 4px;
  background: var(--track); vertical-align: middle; margin-right: 8px; }
.meter i { display: block; height: 100%; border-radius: 4px; background: var(--wait); }
.meter b { position: absolute; top: -3px; width: 2px; height: 16px; background: var(--ink); }
.address { color: var(--soft); font-size: 12px; } .cheat { color: var(--bad); }
footer { color: var(--soft); font-size: 13px; margin-top: 20px; }
"""
