"""How the report looks: on a screen by day and by night, on a telephone and on paper.

Colours are told apart with any colour vision (blue against orange), texts have a contrast of at
least 4.5 (WCAG 2.2 AA), and nothing is said by colour alone.
"""

from __future__ import annotations

from typing import Final

COLOURS: Final = """
:root {
  color-scheme: light dark;
  --page: #fbfaf7; --surface: #ffffff; --text: #1d2228; --quiet: #55606b; --line: #dcd9d2;
  --blue: #0b5cad; --orange: #a8470a; --blue-tint: #cfe3f7; --orange-tint: #fbdcc0;
  --series-0: #0b5cad; --series-1: #b9530f; --series-2: #0f7a5a; --series-3: #8a3f8f;
  --type-0: #cfe3f7; --type-1: #fbdcc0; --type-2: #cdebdd; --type-3: #f0d7f0;
  --type-4: #f6ebb4; --type-5: #dcdfe4; --night: brightness(1); --depth: 50%;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --surface: #1b1f25; --text: #e4e7ea; --quiet: #a5afb9; --line: #353c45;
    --blue: #86bdf3; --orange: #f2a766; --blue-tint: #1f4468; --orange-tint: #5e3613;
    --series-0: #86bdf3; --series-1: #f2a766; --series-2: #63cfa6; --series-3: #d79ada;
    --type-0: #1f4468; --type-1: #5e3613; --type-2: #19503c; --type-3: #55305a;
    --type-4: #4d4413; --type-5: #3d444d; --night: brightness(1.5); --depth: 42%;
  }
}
"""

FRAME: Final = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif;
}
body > * { max-width: 68rem; margin-inline: auto; padding-inline: clamp(1rem, 4vw, 2rem); }
header { padding-top: clamp(1.5rem, 5vw, 3rem); }
h1 { font-size: clamp(1.5rem, 5vw, 2.1rem); line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 0 0 .6rem; }
h3 { font-size: 1.05rem; line-height: 1.3; margin: 1.8rem 0 .5rem; }
h1, h2, h3, p, li, td, th, dd, figcaption { overflow-wrap: anywhere; }
p { max-width: 46rem; margin: .4rem 0 .8rem; }
a { color: var(--blue); text-underline-offset: .15em; }
:focus-visible { outline: 3px solid var(--orange); outline-offset: 2px; }
.quiet, figcaption, caption { color: var(--quiet); }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; padding: 0;
  margin: 1.2rem 0 0; }
nav a { display: inline-block; padding: .2rem 0; }
section { border-top: 1px solid var(--line); margin-top: 2.2rem; padding-top: 1.6rem; }
footer { color: var(--quiet); font-size: .9rem; padding-block: 2rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .8rem;
  margin: 1.4rem 0 0; }
.figures > div { background: var(--surface); border: 1px solid var(--line); border-radius: .5rem;
  padding: .7rem .9rem; }
.figures dt { color: var(--quiet); font-size: .9rem; }
.figures dd { margin: .1rem 0 0; font-size: 1.5rem; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
"""

TABLES: Final = """
.scroll { overflow-x: auto; margin: .6rem 0 1rem; }
table { border-collapse: collapse; min-width: min(100%, 26rem);
  font-variant-numeric: tabular-nums; }
caption { text-align: left; max-width: 86vw; padding-bottom: .4rem; font-size: .95rem; }
th, td { padding: .35rem .7rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
thead th { color: var(--quiet); font-weight: 600; vertical-align: bottom; }
.scroll :is(th, td) { overflow-wrap: break-word; }
tbody th { font-weight: 500; }
@media (max-width: 30rem) { th, td { padding-inline: .4rem; } }
.number { text-align: right; white-space: nowrap; }
tr.total > * { border-top: 2px solid var(--line); }
tr.best > * { font-weight: 700; }
.heat td { text-align: right; min-width: 3.2rem; border: 2px solid var(--page);
  background: color-mix(in srgb, var(--heat) calc(var(--share) * var(--depth)), var(--surface));
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.heat td { --heat: var(--series-1); }
.heat td.right { --heat: var(--series-0); font-weight: 700; }
.heat th, .heat small { white-space: nowrap; }
.heat small { display: block; font-weight: 400; }
.heat thead th { text-align: right; }
.heat thead th.corner { text-align: left; }
.heat th:first-child, .heads th:first-child { position: sticky; left: 0; z-index: 1;
  background: var(--page); }
"""

CHARTS: Final = """
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr));
  gap: 1.2rem; margin-bottom: 1.4rem; }
figure { margin: 0; min-width: 0; }
.charts figure { background: var(--surface); border: 1px solid var(--line); border-radius: .5rem;
  padding: .8rem; }
figcaption { font-size: .95rem; }
figcaption strong { color: var(--text); }
svg { display: block; }
.chart { width: 100%; height: auto; }
figure.cloud { max-width: 26rem; margin-bottom: .8rem; }
.chart text { font-size: 13px; fill: var(--quiet); }
.chart .axis, .chart .grid { stroke: var(--line); fill: none; }
.chart path { fill: none; stroke-width: 1; }
.chart path:is(.s0, .s1, .s2, .s3) { stroke-width: 2; stroke-linejoin: round;
  stroke-linecap: round; }
.s0 { stroke: var(--series-0); } .s1 { stroke: var(--series-1); stroke-dasharray: 7 5; }
.s2 { stroke: var(--series-2); stroke-dasharray: 2 5; }
.s3 { stroke: var(--series-3); stroke-dasharray: 10 4 2 4; }
.chart circle { fill: var(--surface); stroke-width: 2; stroke-dasharray: none; }
.chart circle.dot { fill: var(--series-0); fill-opacity: .4; stroke: none; }
.chart rect.bin { fill: var(--series-0); }
.chart circle.worst { fill: none; stroke: var(--series-1); }
.chart circle.best { fill: currentColor; stroke: none; }
.chart text.best { fill: var(--text); font-weight: 600; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; padding: 0;
  margin: .3rem 0 0; font-size: .9rem; }
.legend svg { display: inline-block; width: 2.2rem; height: .7rem; vertical-align: middle;
  stroke-width: 2.5; margin-right: .4rem; }
"""

EXAMPLES: Final = """
.examples { list-style: none; padding: 0; margin: .8rem 0; display: grid; gap: .8rem; }
.examples > li { background: var(--surface); border: 1px solid var(--line); border-radius: .5rem;
  padding: .8rem 1rem; min-width: 0; break-inside: avoid; }
.examples p { max-width: 54rem; margin: 0 0 .5rem; }
.facts { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: 0; font-size: .95rem; }
.facts > div { display: flex; gap: .4rem; min-width: 0; }
.facts dt { color: var(--quiet); white-space: nowrap; }
.facts dd { margin: 0; font-weight: 600; }
.bar { display: inline-block; width: min(9rem, 30vw); height: .7rem; border-radius: .2rem;
  margin-right: .5rem; vertical-align: -.05rem; border: 1px solid var(--quiet);
  background: linear-gradient(var(--series-0) 0 0) 0 0 / calc(var(--share) * 100%) 100% no-repeat;
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.choices { margin: .3rem 0 0; padding-left: 1.6rem; }
.choices li { margin-bottom: .5rem; }
.choices .mark { font-weight: 700; }
.odds { white-space: nowrap; font-variant-numeric: tabular-nums; }
.choices .odds { display: block; }
mark { color: inherit; background: none; border-radius: .2rem; padding: .05rem .1rem;
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
mark.gold { border-bottom: 3px solid var(--series-0); }
mark.predicted { background: var(--orange-tint); }
.line { display: grid; grid-template-columns: 5rem 1fr; gap: .5rem; margin: 0 0 .4rem; }
.line > span:first-child { color: var(--quiet); }
.line > span:last-child { min-width: 0; overflow-wrap: anywhere; line-height: 1.95; }
.span { background: var(--type); border-radius: .25rem; padding: .1rem .3rem;
  -webkit-box-decoration-break: clone; box-decoration-break: clone;
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.span b { font-size: .78rem; margin-left: .35rem; }
.span.wrong { outline: 2px dashed var(--orange); outline-offset: -1px; }
"""

PIECES: Final = """
.line.text { grid-template-columns: 1.2rem 1fr; }
.line.text > span:last-child { line-height: 2.1; }
mark:is(.masked, .random, .kept) { border: 1px solid var(--quiet); background: var(--surface);
  padding: .05rem .3rem; white-space: nowrap; }
mark.random { border: 2px dashed var(--orange); }
mark.kept { border: 0; border-bottom: 3px double currentColor; border-radius: 0; }
mark:is(.masked, .random, .kept) small { color: var(--quiet); font-size: .8rem; }
mark:is(.masked, .random, .kept) b { font-size: inherit; margin-left: .3rem; }
"""

ATTENTION: Final = """
fieldset { border: 0; padding: 0; margin: 0; min-width: 0; }
.heads { min-width: 0; }
.heads td, .heads th { border: 0; padding: 1px; }
.heads th { font-weight: 500; color: var(--quiet); font-size: .85rem; text-align: center;
  padding: 1px .3rem; vertical-align: middle; }
.heads label { display: block; position: relative; cursor: pointer; border: 2px solid var(--line);
  border-radius: 3px; background: var(--surface); }
.heads label:has(:checked) { border-color: var(--orange); box-shadow: 0 0 0 2px var(--orange); }
.heads label:focus-within { outline: 3px solid var(--orange); outline-offset: 3px; }
.heads input { position: absolute; opacity: 0; inset: 0; margin: 0; cursor: pointer; }
.heads img { display: block; width: clamp(1.9rem, 5.4vw, 4rem); aspect-ratio: 1;
  filter: var(--night); }
.large { flex: none; }
.large text { font: 12px ui-monospace, "DejaVu Sans Mono", monospace; fill: var(--text); }
.large text.over { font-weight: 700; fill: var(--orange); }
.large image { image-rendering: pixelated; filter: var(--night); }
.large rect { fill: none; stroke: var(--line); }
.scale { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none;
  padding: 0; margin: 0 0 1rem; font-size: .9rem; }
.scale img { width: 1.6rem; height: .9rem; vertical-align: -.1rem; margin-right: .35rem;
  border: 1px solid var(--line); filter: var(--night); }
.attention output { display: block; min-height: 1.6em; font-variant-numeric: tabular-nums; }
"""

PAPER: Final = """
@media print {
  body { font-size: 10pt; background: #fff; }
  nav { display: none; }
  .scroll { overflow: visible; }
  .large { max-width: 100%; height: auto; }
  h2, h3 { break-after: avoid; }
  .examples { display: block; }
  .examples > li { margin-bottom: .8rem; }
  figure, tr { break-inside: avoid; }
}
@media (prefers-reduced-motion: no-preference) { html { scroll-behavior: smooth; } }
"""

STYLE: Final = "".join((COLOURS, FRAME, TABLES, CHARTS, EXAMPLES, PIECES, ATTENTION, PAPER))
