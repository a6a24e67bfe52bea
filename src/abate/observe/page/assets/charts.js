// Charts over the last minutes, drawn by uPlot. Colours are those of the style sheet, light or dark.

const uPlot = window.uPlot;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const few = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const drawn = new Set();

/** A chart in an element, as wide as that; `lines` are the names of its colours, the first one is filled. */
export class Chart {
  constructor(element, lines, small = false) {
    this.element = element;
    const axis = {
      stroke: () => colour("--dim"),
      grid: { stroke: () => colour("--edge"), width: 1 },
      ticks: { show: false },
      font: "12px system-ui, sans-serif",
    };
    this.plot = new uPlot({
      ...this.size(),
      legend: { show: false },
      cursor: { show: false },
      padding: small ? [2, 0, 2, 0] : [8, 8, 0, 0],
      scales: { x: { time: true }, y: { range: (_, __, most) => [0, Math.max(1, (most ?? 0) * 1.1)] } },
      axes: small ? [{ show: false }, { show: false }] : [
        { ...axis, values: (_, splits) => splits.map((at) => clock.format(at * 1000)), space: 80, size: 28 },
        { ...axis, values: (_, splits) => splits.map((value) => few.format(value)), size: 46 },
      ],
      series: [{}, ...lines.map((line, place) => ({
        stroke: () => colour(line),
        width: small ? 1.25 : 1.75,
        points: { show: false },
        fill: place === 0 ? () => colour(line) + "22" : undefined,
      }))],
    }, [[], ...lines.map(() => [])], element);
    this.resized = new ResizeObserver(() => this.plot.setSize(this.size()));
    this.resized.observe(element);
    drawn.add(this);
  }

  size() {
    return { width: Math.max(40, this.element.clientWidth), height: Math.max(20, this.element.clientHeight) };
  }

  /** Show these lines; one that began later than the times is filled up on its left. */
  show(times, lines) {
    const filled = lines.map((line) => [...Array(Math.max(0, times.length - line.length)).fill(null), ...line]);
    this.plot.setData([times, ...filled]);
  }

  remove() {
    this.resized.disconnect();
    this.plot.destroy();
    drawn.delete(this);
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of drawn) chart.plot.redraw(false);
});
