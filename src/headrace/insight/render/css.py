"""The style sheet of the pages: one, for light and dark, wide and narrow. Line colours are Okabe and Ito's."""

STYLE = """
:root{--page:#fbfbfa;--card:#fff;--ink:#1c1e21;--soft:#5b6168;--rule:#dfe2e5;--accent:#0b62a3;--warn:#9a5b00;
--bad:#a3231b;--good:#19703f;--mark:#fff1c2;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#b58900;--c5:#56b4e9;--c6:#6b4fbb;--c7:#555}
@media (prefers-color-scheme:dark){:root{--page:#15171a;--card:#1d2024;--ink:#e7e9ec;--soft:#9aa3ad;--rule:#343a41;
--accent:#6cb6f5;--warn:#f0b252;--bad:#ff8a80;--good:#69d29a;--mark:#4a3c0c;
--c0:#4fb0ee;--c1:#ff9147;--c2:#3fd6a8;--c3:#e79cc6;--c4:#e9c64a;--c5:#9bd6ff;--c6:#b39dff;--c7:#b5bcc4}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1180px;margin:0 auto;padding:24px 20px 40px}
h1{font-size:1.35rem;line-height:1.3;margin:0;overflow-wrap:anywhere}
h2{font-size:1rem;margin:0 0 8px;overflow-wrap:anywhere}
header p{margin:4px 0 0;color:var(--soft)}
header .cause{color:var(--bad)}
section{margin-top:24px}
.verdict,.card,figure{background:var(--card);border:1px solid var(--rule);border-radius:8px}
.verdict{padding:16px 18px}
.sentence{font-size:1.1rem;margin:10px 0 4px}
.rule,footer,.notes{color:var(--soft)}
.rule{margin:8px 0 0}
.badge{display:inline-block;padding:1px 9px;border-radius:999px;border:1px solid;font-size:.85rem;color:var(--soft)}
.badge.input-bound,.badge.network-bound,.badge.skewed{color:var(--warn)}
.badge.compute-bound,.badge.balanced{color:var(--good)}
.badge.stalled{color:var(--bad)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr));gap:12px;list-style:none;
margin:16px 0 0;padding:0}
.card{padding:12px 16px}
.card p{margin:4px 0 0}
.summary{margin:16px 0 0;padding-left:20px}
.summary li{margin:4px 0}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92rem}
th,td{padding:5px 18px 5px 0;text-align:left;white-space:nowrap;border-bottom:1px solid var(--rule)}
thead th{color:var(--soft);font-weight:500}
tbody th{font-weight:500}
.right{text-align:right}
.runs th,.runs td{vertical-align:top}
.runs thead th{white-space:normal;overflow-wrap:anywhere;max-width:230px}
.runs b{font-weight:600}
small{color:var(--soft)}
mark{background:var(--mark);color:inherit;padding:1px 5px;border-radius:4px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:14px}
figure{margin:0;padding:12px 14px}
figcaption{font-weight:500;margin-bottom:4px}
figcaption span{color:var(--soft);font-weight:400;margin-left:8px}
.chart{display:block;width:100%;height:auto}
.chart text{fill:var(--soft);font-size:11px}
.grid{stroke:var(--rule);fill:none}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.band{stroke:none;opacity:.16}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;list-style:none;margin:6px 0 0;padding:0;font-size:.85rem;
overflow-wrap:anywhere}
.key{width:24px;height:8px;margin-right:6px}
.line.s0{stroke:var(--c0)}.line.s1{stroke:var(--c1);stroke-dasharray:7 4}.line.s2{stroke:var(--c2);stroke-dasharray:2 4}
.line.s3{stroke:var(--c3);stroke-dasharray:10 4 2 4}.line.s4{stroke:var(--c4)}
.line.s5{stroke:var(--c5);stroke-dasharray:7 4}.line.s6{stroke:var(--c6);stroke-dasharray:2 4}
.line.s7{stroke:var(--c7);stroke-dasharray:10 4 2 4}
.band.s0{fill:var(--c0)}.band.s1{fill:var(--c1)}.band.s2{fill:var(--c2)}.band.s3{fill:var(--c3)}
.band.s4{fill:var(--c4)}.band.s5{fill:var(--c5)}.band.s6{fill:var(--c6)}.band.s7{fill:var(--c7)}
.notes ul{margin:0;padding-left:20px}
details{margin-top:24px}
summary{cursor:pointer}
dt{font-weight:500;margin-top:8px}
dd{margin:0;color:var(--soft)}
footer{margin-top:24px;overflow-wrap:anywhere}
code{font-family:ui-monospace,monospace;font-size:.9em}
@media (max-width:520px){main{padding:16px 12px 32px}.verdict{padding:12px 14px}.chart text{font-size:15px}}
@media print{main{max-width:none}figure,.verdict,.card{break-inside:avoid}}
""".strip()
"""All rules of the pages."""
