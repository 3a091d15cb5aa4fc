// Lines over time, drawn by uPlot (vendor/), in the page's colours.
import { palette } from "./colors.js";
import { h } from "./dom.js";

function moment(at, times) {
  const date = new Date(at * 1000), long = times.at(-1) - times[0];
  if (long > 2 * 86400) return date.toLocaleDateString("en-CA").slice(5);
  return date.toLocaleTimeString("en-GB", long > 1200 ? { hour: "2-digit", minute: "2-digit" } : {});
}

// ``lines``: [name, values, colour of the palette, options]. Times are seconds.
export function plot(holder, times, lines, { height = 150, most = null, unit = " %", axes = true } = {}) {
  const colors = palette();
  const axis = { stroke: colors.soft, grid: { stroke: colors.line, width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  const options = {
    width: Math.max(120, holder.clientWidth), height, cursor: { y: false }, legend: { show: axes, live: true },
    scales: { y: { range: (_, low, high) => (most === null ? [Math.min(0, low), Math.max(1, high)] : [0, most]) } },
    axes: axes ? [{ ...axis, values: (_, ticks) => ticks.map((tick) => moment(tick, times)) }, { ...axis, size: 46, values: (_, ticks) => ticks.map((tick) => `${tick}${unit}`) }] : [{ show: false }, { show: false }],
    series: [{ label: "time", value: (_, at) => (at ? moment(at, times) : "–") }, ...lines.map(([label, , color, more]) => ({
      label, stroke: colors[color] || color, width: 1.6, points: { show: false },
      value: (_, value) => (value === null || value === undefined ? "–" : `${Math.round(value * 10) / 10}${unit}`), ...more,
    }))],
  };
  const data = [times, ...lines.map(([, values]) => values)];
  const key = lines.map(([name]) => name).join() + options.width + colors.card + height;
  if (holder.plotted?.key === key) {
    holder.plotted.made.setData(data);
    return;
  }
  holder.plotted?.made.destroy();
  holder.replaceChildren();
  holder.plotted = { key, made: new uPlot(options, data, holder) };
}

// A line without anything around it.
export function spark(values, { width = 110, height = 30, most = 100 } = {}) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  svg.setAttribute("aria-hidden", "true");
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return h("span", {});
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const top = Math.max(most, ...known);
  line.setAttribute("points", values.map((value, at) =>
    value === null ? "" : `${((at / (values.length - 1)) * width).toFixed(1)},${(height - 1 - (value / top) * (height - 2)).toFixed(1)}`).join(" "));
  line.setAttribute("fill", "none");
  line.setAttribute("stroke", palette().accent);
  line.setAttribute("stroke-width", "1.5");
  svg.append(line);
  return svg;
}
