"""The style and the script of the page, as constants of ours. Nothing that was read ever comes in here.

Colours have a contrast of at least 4.5 to 1 for text and 3 to 1 for lines, light and dark. The script only shows values
under the pointer; the page is whole without it.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

STYLE: Final = """
:root{color-scheme:light dark;--bg:#f6f7f8;--card:#fff;--ink:#1b1f24;--soft:#56606c;--rule:#dde1e6;--grid:#e7eaee;
--frame:#8a939e;--code:#f0f2f4;--blue:#1f5fc0;--red:#b3231b;--amber:#8d5800;--green:#17703c;--band:#1f5fc033;
--older:#7b8592;--badbg:#fdecea;--warnbg:#fdf3df;--goodbg:#e6f4ea;--infobg:#e7effb;--restart:#6b4fb3;--other:#b9c1ca;
--redone:#c98a1b}
@media screen and (prefers-color-scheme:dark){:root{--bg:#12151a;--card:#1a1e24;--ink:#e7eaee;--soft:#a6b0bc;
--rule:#2f363f;--grid:#272d35;--frame:#7a8592;--code:#232932;--blue:#82b1ff;--red:#ff9389;--amber:#f2bd55;
--green:#6fd394;--band:#82b1ff33;--older:#8a95a3;--badbg:#3a1d1c;--warnbg:#372b13;--goodbg:#16301f;--infobg:#1a2a45;
--restart:#b9a3f5;--other:#4d5763;--redone:#c99432}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
overflow-wrap:anywhere}
main,header.top,footer{max-width:1120px;margin:0 auto;padding:0 20px}
h1,h2,h3,p,ul,ol,dl,figure,table,pre{margin:0;padding:0}
h1{font-size:30px;line-height:1.2;letter-spacing:-.01em}
h2{font-size:20px;line-height:1.3;margin-bottom:12px}
h3{font-size:16px;line-height:1.4}
code,pre,time,.mono{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:13px}
.small,small{font-size:13.5px;line-height:1.45;color:var(--soft)}
section{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:20px;margin:16px 0}
header.top{padding-top:28px}
.kicker{color:var(--soft);font-size:14px;margin-bottom:4px}
.outcome{border:1px solid var(--rule);border-left:6px solid var(--tone);background:var(--tonebg);border-radius:10px;
padding:16px 20px;margin:14px 0 16px}
.outcome .sentence{font-size:19px;line-height:1.4;margin-top:6px}
.outcome .small{color:var(--ink);margin-top:6px}
.state{display:inline-block;font-weight:650;color:var(--tone);font-size:15px}
.state::before{content:"";display:inline-block;width:10px;height:10px;border-radius:50%;background:var(--tone);
margin-right:8px}
.bad{--tone:var(--red);--tonebg:var(--badbg)}.warned{--tone:var(--amber);--tonebg:var(--warnbg)}
.good{--tone:var(--green);--tonebg:var(--goodbg)}.plain{--tone:var(--blue);--tonebg:var(--infobg)}
.unclear{--tone:var(--soft);--tonebg:var(--card)}
.next{padding-left:24px}.next li{margin:4px 0}.next li::marker{color:var(--soft)}
code{background:var(--code);border-radius:4px;padding:1px 4px}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(225px,1fr));gap:1px;
border:1px solid var(--rule);border-radius:8px;overflow:hidden}
.tiles>div{background:var(--card);padding:12px 14px;box-shadow:0 0 0 1px var(--rule)}
.tiles dt{font-size:14px;color:var(--soft)}
.tiles dd{margin:0}
.tiles .value{font-size:22px;line-height:1.3;font-weight:600;font-variant-numeric:tabular-nums}
.tiles .value.unknown{font-weight:400;font-style:italic;color:var(--soft)}
.tiles .value.wrong{color:var(--red)}
.bar{display:block;border-radius:6px;margin:12px 0 14px;overflow:hidden}
.big{font-size:22px;font-weight:600}.beside{color:var(--soft);margin-left:8px}
.part.productive,.swatch.productive{fill:var(--green);background:var(--green)}
.part.redone,.swatch.redone{fill:var(--redone);background:var(--redone)}
.part.other,.swatch.other{fill:var(--other);background:var(--other)}
.part.restart,.swatch.restart{fill:var(--restart);background:var(--restart)}
.part{stroke:var(--card);stroke-width:1.5px}
.swatch{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:8px;vertical-align:-1px;flex:none}
.swatch.newest{height:3px;width:18px;background:var(--blue);vertical-align:4px}
.swatch.older{height:0;width:18px;border-top:4px dashed var(--older);border-radius:0;vertical-align:4px}
.swatch.dotted{width:6px;height:6px;border:0;border-radius:50%;margin:0 14px 0 6px}
.swatch.older.dotted{background:var(--older)}
.swatch.attempt{background:var(--infobg);border:1.5px solid var(--blue)}
table{border-collapse:collapse;width:100%;font-size:15px}
th{text-align:left;font-weight:600}
thead th{font-size:13.5px;color:var(--soft);font-weight:500;border-bottom:1px solid var(--rule);
padding:4px 14px 6px 0}
tbody th,td{padding:7px 14px 7px 0;vertical-align:top;border-bottom:1px solid var(--grid)}
tbody tr:last-child>*{border-bottom:0}
tbody th{font-weight:500}
.cards th{white-space:nowrap}.cards td{min-width:72px}.cards td.when{white-space:nowrap}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
table .small,thead th.wide{padding-left:14px}.pair{display:inline-flex;align-items:baseline}
.word{display:inline-block;max-width:100%}
.more{margin-top:12px}
.facts{display:grid;grid-template-columns:minmax(120px,max-content) 1fr;gap:6px 18px;font-size:15px}
.facts dt{color:var(--soft)}.facts dd{margin:0}
.facts .none{color:var(--soft)}
details{margin-top:10px}
summary{cursor:pointer;color:var(--blue);font-size:14.5px;width:fit-content}
summary:focus-visible,pre:focus-visible,.plot:focus-visible{outline:2px solid var(--blue);outline-offset:3px;
border-radius:3px}
pre{background:var(--code);border-radius:6px;padding:10px 12px;overflow-x:auto;line-height:1.45;white-space:pre;
tab-size:4;
overflow-wrap:normal}
pre.line{white-space:pre-wrap;overflow-wrap:anywhere;padding:6px 10px;margin-top:6px;
border-left:3px solid var(--tone,var(--rule))}
pre.tall{max-height:420px;overflow:auto}
.timeline{list-style:none}
.timeline>li{display:grid;grid-template-columns:84px 20px 1fr;gap:0 8px;padding:9px 0;
border-top:1px solid var(--grid)}
.timeline>li:first-child{border-top:0}
.timeline>.day,.timeline>.cut{display:block;font-size:13.5px;color:var(--soft);padding:14px 0 4px;border-top:0}
.timeline>.day+li{border-top:0}
.timeline>.day:first-child{padding-top:0}
.timeline time,.timeline .when{font-size:13px;line-height:24px;color:var(--soft);white-space:nowrap}
.timeline>li>svg{margin-top:6px}
.timeline .what{min-width:0}
.timeline .where{color:var(--soft);font-size:13.5px}
.timeline.timeless>li{grid-template-columns:20px 1fr}
.tag{font-size:13.5px;font-weight:600;color:var(--tone,var(--soft));margin-right:6px}
.critical{--tone:var(--red)}.warn{--tone:var(--amber)}.note{--tone:var(--soft)}.restart{--tone:var(--restart)}
.nan{--tone:var(--red)}.request{--tone:var(--blue)}.finish{--tone:var(--ink)}
.sign{fill:var(--tone)}
.chart{margin-top:26px}.chart:first-of-type{margin-top:0}
figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 16px;align-items:baseline}
.unit{font-weight:400;color:var(--soft);font-size:13.5px;margin-left:8px}
.readout{font-size:13.5px;color:var(--soft);font-variant-numeric:tabular-nums}
.plot{padding:0 12px 0 70px;touch-action:pan-y}
.strip{padding:0 12px 0 12px}
.below{text-align:center;font-size:13px;line-height:1.3;color:var(--soft)}
svg{display:block;overflow:visible}
.plot>svg text,.strip>svg text{font-size:12px;fill:var(--soft);font-variant-numeric:tabular-nums}
text.y,text.end{text-anchor:end}text.x,text.middle,text.inside{text-anchor:middle}text.start{text-anchor:start}
.strip>svg text.inside{fill:var(--ink);font-weight:600}
line{stroke:var(--grid);shape-rendering:crispEdges}
line.frame{stroke:var(--frame)}
line.mark{stroke:var(--tone);stroke-opacity:.55}
line.restart{stroke-dasharray:4 3}
line.cursor{stroke:var(--ink);stroke-opacity:.6}
path{vector-effect:non-scaling-stroke}
.band{fill:var(--band)}
.line{fill:none;stroke:var(--blue);stroke-width:1.8px;stroke-linejoin:round}
.dots{fill:none;stroke:var(--blue);stroke-width:5px;stroke-linecap:round}
.older .line{stroke:var(--older);stroke-width:4px;stroke-dasharray:4 3}
.older .dots{stroke:var(--older);stroke-width:8px}
.older .band{fill:var(--older);fill-opacity:.16}
rect.attempt{fill:var(--infobg);stroke:var(--blue);stroke-width:1.5px}
rect.open{stroke-dasharray:5 3}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13.5px;color:var(--soft);margin-top:6px}
.plot+.legend,.plot~details{margin-left:70px}
.legend li{display:flex;align-items:center}.legend svg{margin-right:7px;flex:none}
.marks{list-style:none;font-size:14px;margin-top:6px}.marks svg{display:inline-block;margin-right:7px}
.marks .where{color:var(--soft);margin-right:8px}
footer{color:var(--soft);font-size:13.5px;padding-bottom:32px}
@media (min-width:720px){.narrow{display:none}}
@media (max-width:719px){.wide{display:none}
main,header.top,footer{padding:0 14px}header.top{padding-top:18px}
section{padding:16px 14px;margin:12px 0}
h1{font-size:25px}.outcome{padding:14px}.outcome .sentence{font-size:17px}
.tiles{grid-template-columns:repeat(auto-fill,minmax(150px,1fr))}
.tiles>div{padding:10px 12px}.tiles .value{font-size:19px}
.facts{grid-template-columns:1fr;gap:0}.facts dd{margin-bottom:8px}
section:has(.plot) .plot+.legend,section:has(.plot) .plot~details{margin-left:0}
.plot{padding:0 6px 0 62px}.strip{padding:0 4px}
.timeline>li{grid-template-columns:66px 16px 1fr;gap:0 4px}
.shares th,.shares td{padding-right:8px;font-size:14px}.shares tr>:last-child{padding-right:0}
.shares tr>:nth-last-child(2){padding-right:0}
.cards thead{display:none}
.cards tr{display:block;padding:10px 0;border-bottom:1px solid var(--rule)}
.cards tr:last-child{border-bottom:0}
.cards tbody th,.cards td{display:flex;justify-content:space-between;gap:16px;border:0;padding:2px 0;
text-align:right;white-space:normal}
.cards td::before{content:attr(data-label);color:var(--soft);text-align:left;flex:none}
.cards tbody th{font-weight:600;justify-content:flex-start}
.cards td.when{white-space:normal}
.cards td.long{display:block;text-align:left}.cards td.long::before{display:block}
}
@media print{body{background:#fff;font-size:11pt}section{border:0;padding:0;margin:14pt 0}
.outcome,figure,.timeline>li,tr{break-inside:avoid}h2,h3{break-after:avoid}
pre,pre.tall{white-space:pre-wrap;overflow-wrap:anywhere;max-height:none;overflow:visible}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
summary{list-style:none;color:var(--soft)}details::details-content{content-visibility:visible;display:block;
height:auto}}
@media (prefers-contrast:more){:root{--soft:var(--ink);--grid:var(--frame)}}
"""

SCRIPT: Final = """
"use strict";
for(const plot of document.querySelectorAll(".plot[data-x]")){
const read=n=>(plot.dataset[n]||"").split(" ").map(Number);
const x=read("x"),low=read("low"),high=plot.dataset.high?read("high"):low;
const from=+plot.dataset.from,to=+plot.dataset.to,label=plot.dataset.label;
const tries=(plot.dataset.attempts||"").split(" ").filter(Boolean).map(t=>t.split(":"));
const svg=plot.querySelector("svg"),out=plot.parentNode.querySelector("output"),kept=out.textContent;
const line=document.createElementNS(svg.namespaceURI,"line");
line.setAttribute("class","cursor");line.setAttribute("y1","32");line.setAttribute("y2","232");
let at=-1;
const say=v=>v.toLocaleString("en-US",Math.abs(v)<1e5?{maximumSignificantDigits:5}:{maximumFractionDigits:0});
const show=i=>{at=i;const p=(x[i]-from)/(to-from)*100+"%";
line.setAttribute("x1",p);line.setAttribute("x2",p);svg.append(line);
let t="";for(const s of tries)if(+s[0]<=i)t=s[1];
out.textContent=label+" "+x[i].toLocaleString("en-US",{maximumFractionDigits:6}
)+": "+say(low[i])+(high[i]>low[i]?" to "+say(high[i]):"")+
(tries.length>1&&t?" · attempt "+t:"")};
const hide=()=>{at=-1;line.remove();out.textContent=kept};
plot.addEventListener("pointermove",e=>{const box=svg.getBoundingClientRect();
const want=from+(e.clientX-box.left)/box.width*(to-from);
let best=0;for(let i=1;i<x.length;i++)if(Math.abs(x[i]-want)<Math.abs(x[best]-want))best=i;show(best)});
plot.addEventListener("pointerleave",hide);plot.addEventListener("blur",hide);
plot.tabIndex=0;plot.setAttribute("role","group");
plot.setAttribute("aria-label",plot.parentNode.querySelector("h3").textContent+": arrow keys read single values");
plot.addEventListener("keydown",e=>{const next={
ArrowLeft:Math.max(0,at-1),ArrowRight:Math.min(x.length-1,at+1),Home:0,
End:x.length-1}[e.key];
if(next!==undefined){e.preventDefault();show(next)}else if(e.key==="Escape")hide()});
}
"""


def _digest(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    f"script-src 'sha256-{_digest(SCRIPT)}'; base-uri 'none'; form-action 'none'"
)
"""What a browser may do with the page: run this one script, and ask nobody for anything."""
