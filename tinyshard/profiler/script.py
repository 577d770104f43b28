"""The script that zooms the picture of a trace in a browser: it draws on a canvas, and loads nothing."""

SCRIPT = r"""
(() => {
const root = document.getElementById("__ID__");
if (!root || root.dataset.alive) return;
root.dataset.alive = "1";
const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
const {rows, bars, kinds, texts, wall, left, row, bar, top: above} = data;
const height = above + row * rows.length + 22;
const holder = root.querySelector(".picture");
const canvas = document.createElement("canvas");
canvas.tabIndex = 0;
canvas.setAttribute("role", "img");
canvas.setAttribute("aria-label", "timeline; arrow keys move, + and - zoom, 0 shows all");
canvas.style.cssText = `width:100%;height:${height}px;display:block;cursor:grab;outline-offset:2px;touch-action:pan-y`;
const tip = document.createElement("div");
tip.style.cssText = "position:fixed;z-index:1000;pointer-events:none;display:none;max-width:460px;padding:6px 9px;" +
  "border-radius:5px;background:#222;color:#fff;font:12px/1.45 system-ui,sans-serif;box-shadow:0 2px 8px #0006";
const help = document.createElement("div");
help.style.cssText = `display:flex;gap:6px;align-items:center;margin:0 0 4px ${left}px;opacity:.85`;
const button = (label, title, act) => {
  const b = document.createElement("button");
  b.textContent = label; b.title = title; b.type = "button";
  b.style.cssText = "min-width:26px;height:22px;padding:0 7px;border:1px solid rgba(128,128,128,.5);" +
    "border-radius:4px;background:transparent;color:inherit;cursor:pointer;font:inherit";
  b.onclick = act; help.append(b);
};
holder.replaceChildren(help, canvas);
root.append(tip);
let from = 0, to = wall, drag = null, pending = false;
const width = () => canvas.clientWidth - left - 8;
const x = ns => left + (ns - from) / (to - from) * width();
const ns = px => from + (px - left) / width() * (to - from);
const time = t => t >= 1e9 ? (t / 1e9).toPrecision(4) + " s" : t >= 1e6 ? (t / 1e6).toPrecision(4) + " ms"
  : (t / 1e3).toPrecision(3) + " µs";
const short = name => name.replace(/^aten\./, "").replace(/\.\w+$/, "");
const view = (a, b) => {
  const span = Math.min(Math.max(b - a, 200), wall);
  from = Math.min(Math.max(a, 0), wall - span); to = from + span; redraw();
};
const zoom = (factor, at) => view(at - (at - from) * factor, at + (to - at) * factor);
const middle = () => (from + to) / 2;
button("+", "zoom in", () => zoom(.5, middle()));
button("−", "zoom out", () => zoom(2, middle()));
button("all", "show all", () => view(0, wall));
const words = document.createElement("span");
words.style.cssText = "opacity:.7;margin-left:6px";
words.textContent = "drag to move, Ctrl + wheel to zoom";
help.append(words);
function draw() {
  pending = false;
  const scale = window.devicePixelRatio || 1, c = canvas.getContext("2d");
  canvas.width = canvas.clientWidth * scale; canvas.height = height * scale;
  c.setTransform(scale, 0, 0, scale, 0, 0);
  const ink = getComputedStyle(root).color;
  c.clearRect(0, 0, canvas.clientWidth, height);
  c.font = "12px system-ui, sans-serif"; c.textBaseline = "middle";
  c.fillStyle = ink;
  rows.forEach((name, i) => {
    const y = above + i * row;
    c.globalAlpha = 1; c.textAlign = "right"; c.fillText(name, left - 10, y + bar / 2 + 1);
    c.globalAlpha = .06; c.fillRect(left, y, width(), bar);
  });
  c.globalAlpha = 1; c.textAlign = "left";
  c.save(); c.beginPath(); c.rect(left, 0, width(), height); c.clip();
  c.font = "11px system-ui, sans-serif";
  for (const [r, start, length, kind, name] of bars) {
    const end = start + length;
    if (end < from || start > to) continue;
    const a = Math.max(x(start), left - 2), w = Math.max(Math.min(x(end), left + width() + 2) - a, .5);
    const y = above + r * row;
    c.fillStyle = kinds[kind][1]; c.fillRect(a, y, w, bar);
    if (w > 3 && kinds[kind][0] !== "call") {
      c.strokeStyle = "rgba(0,0,0,.22)"; c.lineWidth = 1; c.strokeRect(a + .5, y + .5, w - 1, bar - 1);
    }
    if (w > 34 && kinds[kind][0] !== "call") {
      const text = short(texts[name]) || kinds[kind][0];
      if (c.measureText(text).width < w - 8) { c.fillStyle = "#000"; c.fillText(text, a + 4, y + bar / 2 + 1); }
    }
  }
  c.restore();
  c.font = "12px system-ui, sans-serif"; c.fillStyle = c.strokeStyle = ink; c.textAlign = "center";
  let step = 10 ** Math.floor(Math.log10((to - from) / 4));
  while ((to - from) / step > 9) step *= step.toString().startsWith("2") ? 2.5 : 2;
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    c.globalAlpha = .15; c.beginPath(); c.moveTo(x(at), 0); c.lineTo(x(at), height - 18); c.stroke();
    c.globalAlpha = .7;
    if (x(at) < canvas.clientWidth - 24) c.fillText(time(at).replace(/\.?0+ /, " "), x(at), height - 8);
  }
  c.globalAlpha = 1;
}
function redraw() { if (!pending) { pending = true; requestAnimationFrame(draw); } }
function found(px, py) {
  const r = Math.floor((py - above) / row);
  if (px < left || r < 0 || (py - above) % row > bar) return null;
  const near = (to - from) / width(), at = ns(px);
  for (let i = bars.length - 1; i >= 0; i--) {
    const b = bars[i];
    if (b[0] === r && b[1] - near <= at && at <= b[1] + b[2] + near) return b;
  }
  return null;
}
canvas.addEventListener("mousemove", event => {
  const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
  if (drag) {
    const moved = (drag.px - px) / width() * (drag.to - drag.from);
    view(drag.from + moved, drag.to + moved);
  }
  const b = drag ? null : found(px, py);
  tip.style.display = b ? "block" : "none";
  if (!b) return;
  const [name, more, line] = [0, 1, 2].map(() => document.createElement("div"));
  name.textContent = texts[b[4]] || kinds[b[3]][0]; name.style.fontWeight = "600";
  more.textContent = `${kinds[b[3]][2]} on ${rows[b[0]]}: ${time(b[2])}, at ${time(b[1])}`;
  line.textContent = texts[b[5]]; line.style.cssText = "font-family:ui-monospace,monospace;opacity:.85";
  tip.replaceChildren(name, more, line);
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8) + "px";
});
canvas.addEventListener("mouseleave", () => { tip.style.display = "none"; });
canvas.addEventListener("mousedown", event => {
  drag = {px: event.clientX - canvas.getBoundingClientRect().left, from, to}; canvas.style.cursor = "grabbing";
});
window.addEventListener("mouseup", () => { drag = null; canvas.style.cursor = "grab"; });
canvas.addEventListener("dblclick", () => view(0, wall));
canvas.addEventListener("wheel", event => {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  zoom(Math.exp(event.deltaY / 300), ns(event.clientX - canvas.getBoundingClientRect().left));
}, {passive: false});
canvas.addEventListener("keydown", event => {
  const step = (to - from) / 5;
  const act = {ArrowLeft: () => view(from - step, to - step), ArrowRight: () => view(from + step, to + step),
    "+": () => zoom(.5, middle()), "=": () => zoom(.5, middle()), "-": () => zoom(2, middle()),
    "0": () => view(0, wall)}[event.key];
  if (act) { act(); event.preventDefault(); event.stopPropagation(); }
});
new ResizeObserver(redraw).observe(canvas);
redraw();
})();
"""
