// Reads off the charts what lies under the pointer. Without it the page lacks nothing else.
"use strict";
(() => {
  const element = document.getElementById("readings");
  if (!element) return;
  const { end, panels } = JSON.parse(element.textContent);
  const plots = [...document.querySelectorAll("svg.plot")];
  const outputs = new Map();
  for (const output of document.querySelectorAll("output[data-series]"))
    outputs.set(output.dataset.series, output);
  const clock = document.querySelector("output[data-time]");

  // Index of the last time that is not after `at`; the first if there is none.
  const before = (times, at) => {
    let low = 0, high = times.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (times[middle] <= at) low = middle; else high = middle;
    }
    return low;
  };
  const spoken = (seconds) => {
    if (seconds < 120) return `${seconds.toPrecision(3)} s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 120) return `${minutes} min ${Math.floor(seconds % 60)} s`;
    return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  };
  const hide = () => {
    for (const plot of plots) plot.querySelector(".cross").setAttribute("visibility", "hidden");
    for (const output of outputs.values()) output.textContent = "";
    clock.textContent = "";
  };
  const show = (event) => {
    const plot = event.currentTarget, box = plot.getBoundingClientRect();
    const [left, right] = [+plot.dataset.left, +plot.dataset.right];
    const x = ((event.clientX - box.left) / box.width) * plot.viewBox.baseVal.width;
    const part = (x - left) / (right - left);
    if (part < 0 || part > 1) return hide();
    for (const other of plots) {
      const [from, to] = [+other.dataset.left, +other.dataset.right];
      const cross = other.querySelector(".cross"), at = from + part * (to - from);
      cross.setAttribute("x1", at);
      cross.setAttribute("x2", at);
      cross.setAttribute("visibility", "visible");
    }
    const now = part * end;
    clock.textContent = `at ${spoken(now)}`;
    for (const { t, series } of panels) {
      const index = before(t, now);
      for (const [key, { unit, v }] of Object.entries(series)) {
        const money = unit === "$", value = v[index];
        outputs.get(key).textContent =
          value === null ? "" : money ? `$${value}` : /^[a-z%]{1,3}$/.test(unit) ? `${value} ${unit}` : `${value}`;
      }
    }
  };
  for (const plot of plots) {
    plot.addEventListener("pointermove", show);
    plot.addEventListener("pointerdown", show);
    plot.addEventListener("pointerleave", hide);
  }
})();
