// Charts of reports and of the explorer, drawn by Plotly from small descriptions:
//
//   { id, title, note, x, y, log, logx, rule, series: [{ name, x, y, kind, low, high, text, size }], heat: { x, y, z, label } }
//
// kind: line (default), step, points, bar. low, high: a band about a line. note: said beside the title. rule: a
// horizontal line { at, name }. mark: a vertical one. empty: said while there is nothing to draw. Colours are of the Okabe-Ito palette, lighter ones on a dark ground; dashes differ too.
"use strict";

const Charts = (() => {
  const LIGHT = {
    colors: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"],
    ink: "#1a1f26", quiet: "#58626e", line: "#e3e6ea", axis: "#9aa3ad", ground: "#ffffff",
  };
  const DARK = {
    colors: ["#56B4E9", "#E69F00", "#2BC196", "#E3A3C6", "#5B8DEF", "#F0E442", "#E7EAEE"],
    ink: "#e7eaee", quiet: "#a2adb9", line: "#2b3139", axis: "#5d6773", ground: "#13161a",
  };
  const DASHES = ["solid", "dash", "dashdot", "dot", "longdash", "longdashdot", "solid"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star"];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map();
  let printing = false;

  const theme = () => (dark.matches && !printing ? DARK : LIGHT);
  const text = (value) =>
    value === null || value === undefined ? "–"
      : typeof value !== "number" ? String(value)
      : Number.isInteger(value) ? String(value)
      : Math.abs(value) >= 1e-3 && Math.abs(value) < 1e7 ? String(Number(value.toPrecision(4)))
      : Number(value.toPrecision(4)).toExponential();

  const element = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  function traces(spec, hidden, colors) {
    if (spec.heat) {
      const { x, y, z, label } = spec.heat;
      return [{
        type: "heatmap", x: x.map(escape_), y: y.map(escape_), z, colorscale: "Cividis", reversescale: true,
        hovertemplate: `${escape_(spec.x)} %{x}<br>${escape_(spec.y)} %{y}<br>${escape_(label)} %{z:.4g}<extra></extra>`,
        colorbar: { title: { text: label, side: "right" }, outlinewidth: 0, thickness: 14 },
      }];
    }
    return spec.series.flatMap((series, i) => {
      const color = colors[i % colors.length];
      const visible = !hidden.has(series.name);
      const base = {
        name: series.name, x: series.x, y: series.y, visible, showlegend: false,
        hovertemplate: `%{x:.6~g}: <b>%{y:.4~g}</b>${series.text ? "<br>%{customdata}" : ""}<extra>${escape_(series.name)}</extra>`,
      };
      if (series.text) base.customdata = series.text.map(escape_);
      if (series.kind === "bar") return [{ ...base, type: "bar", marker: { color } }];
      const few = series.x.length <= 60;
      const line = { color, width: 2, dash: DASHES[i % DASHES.length], shape: series.kind === "step" ? "vh" : "linear" };
      const marker = { color, size: series.size ?? (series.kind === "points" ? 8 : 5), symbol: SYMBOLS[i % SYMBOLS.length], opacity: series.kind === "points" ? 0.8 : 1 };
      const mode = series.kind === "points" ? "markers" : few && series.kind !== "step" ? "lines+markers" : "lines";
      const main = { ...base, type: "scatter", mode, line, marker };
      if (!series.low) return [main];
      const edge = { type: "scatter", mode: "lines", x: series.x, visible, showlegend: false, hoverinfo: "skip", line: { width: 0 } };
      return [{ ...edge, y: series.low }, { ...edge, y: series.high, fill: "tonexty", fillcolor: color + "30" }, main];
    });
  }

  // Plotly reads a little HTML in texts.
  const escape_ = (value) => String(value).replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);

  const PAPER = { width: 296, height: 215 };  // half the width of a page, A4 or letter, in pixels

  function layout(spec, log, colors) {
    const axis = (title, isLog) => ({
      title: { text: escape_(title), font: { size: 13 }, standoff: 8 }, automargin: true, gridcolor: colors.line,
      linecolor: colors.axis, zeroline: false, type: isLog ? "log" : undefined, ticks: "outside", tickcolor: colors.axis,
      tickfont: { color: colors.quiet }, exponentformat: "power", minexponent: 4, nticks: isLog ? undefined : 7,
    });
    // A logarithmic axis has a label at every 1, 2 and 5 of a few decades, at whole decades of many; and at round
    // numbers in even steps where it covers so little that it would have one label, or none.
    const labelled = (made, values) => {
      const positive = values.filter((value) => value > 0);
      if (made.type !== "log" || !positive.length) return;
      const [low, high] = [Math.log10(Math.min(...positive)), Math.log10(Math.max(...positive))];
      if (high - low < 2.2) {
        made.tickvals = [];
        for (let k = Math.floor(low) - 1; k <= Math.ceil(high); k++) made.tickvals.push(1 * 10 ** k, 2 * 10 ** k, 5 * 10 ** k);
        const [least, most] = [Math.min(...positive), Math.max(...positive)];
        if (most > least && made.tickvals.filter((value) => value >= least && value <= most).length < 2) {
          const rough = (most - least) / 5, unit = 10 ** Math.floor(Math.log10(rough));
          const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough);
          made.tickvals = [];
          for (let k = Math.floor(least / step); k <= Math.ceil(most / step); k++) if (k > 0) made.tickvals.push(k * step);
        }
        made.ticktext = made.tickvals.map(text);
      } else made.dtick = Math.max(1, Math.ceil((high - low) / 8));
    };
    const xs = spec.heat ? [] : spec.series.flatMap((series) => series.x);
    const whole = xs.length > 0 && xs.every(Number.isInteger) && !spec.logx;
    const y = axis(spec.y, log && !spec.heat);
    const x = axis(spec.x, spec.logx && !spec.heat);
    if (spec.heat) { x.type = "category"; y.type = "category"; }
    labelled(y, spec.heat ? [] : spec.series.flatMap((series) => series.y));
    labelled(x, xs);
    if (whole && Math.max(...xs) - Math.min(...xs) < 7) x.dtick = 1;
    if (!log && !spec.heat && !spec.free) y.rangemode = "tozero";
    const straight = (said, place) => ({
      type: "line", ...place, line: { color: colors.quiet, width: 1.5, dash: "dot" },
      label: { text: escape_(said.name), textposition: place.yref ? "end" : "start", textangle: 0, xanchor: "left",
        font: { size: 11, color: colors.quiet } },
    });
    const shapes = [];
    if (spec.rule) shapes.push(straight(spec.rule, { xref: "paper", x0: 0, x1: 1, y0: spec.rule.at, y1: spec.rule.at }));
    const nothing = spec.empty && !spec.series.some((series) => series.x.length);
    if (spec.mark && !nothing) shapes.push(straight(spec.mark, { yref: "paper", y0: 0, y1: 1, x0: spec.mark.at, x1: spec.mark.at }));
    const annotations = nothing ? [{
      text: escape_(spec.empty), xref: "paper", yref: "paper", x: 0.5, y: 0.5, showarrow: false,
      font: { color: colors.quiet, size: 13 },
    }] : [];
    if (nothing) for (const side of [x, y]) Object.assign(side, { showticklabels: false, range: [0, 1], ticks: "", showgrid: false });
    return {
      xaxis: x, yaxis: y, shapes, annotations, margin: { l: 8, r: 12, t: spec.mark ? 24 : 12, b: 8 }, hovermode: "closest", dragmode: "zoom",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", uirevision: "kept",
      font: { family: 'system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif', size: 12, color: colors.ink },
      hoverlabel: { bgcolor: colors.ground, bordercolor: colors.axis, font: { color: colors.ink } },
      bargap: 0.15, ...(printing ? { autosize: false, ...PAPER } : { autosize: true, width: undefined, height: undefined }),
    };
  }

  const CONFIG = { displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };

  function inWords(spec) {
    if (spec.heat) return `${spec.title}: a map of ${spec.heat.label} over ${spec.x} and ${spec.y}`;
    const parts = spec.series.filter((s) => s.y.length).map((s) => {
      const last = s.y.length - 1;
      return `${s.name}: ${text(s.y[0])} at ${text(s.x[0])}` + (last ? `, ${text(s.y[last])} at ${text(s.x[last])}` : "");
    });
    return `${spec.title}. ${spec.y} against ${spec.x}. ${parts.join("; ")}`;
  }

  function table(spec) {
    const rows = [];
    if (spec.heat) {
      spec.heat.y.forEach((y, j) => spec.heat.x.forEach((x, i) => rows.push([x, y, spec.heat.z[j][i]])));
      return [[spec.x, spec.y, spec.heat.label], rows];
    }
    for (const s of spec.series) s.x.forEach((x, i) => rows.push([s.name, x, s.y[i]]));
    return [["", spec.x, spec.y], rows];
  }

  function render(chart) {
    const { spec, hidden, log, plot } = chart;
    const colors = theme();
    plot.setAttribute("aria-label", inWords(spec));
    chart.keys.forEach((key, i) => {
      const color = colors.colors[i % colors.colors.length];
      const style = { solid: "solid", dash: "dashed", dot: "dotted" }[DASHES[i % DASHES.length]] ?? "dashed";
      if (spec.series[i].kind === "bar") key.style.background = color;
      else if (spec.series[i].kind === "points") Object.assign(key.style, { background: color, width: ".7em", borderRadius: SYMBOLS[i % SYMBOLS.length] === "circle" ? "50%" : "0" });
      else key.style.borderBottom = `3px ${style} ${color}`;
    });
    return Plotly.react(plot, traces(spec, hidden, colors.colors), layout(spec, log, colors), CONFIG);
  }

  // Draw, or draw anew what was drawn there; what the reader has switched stays switched.
  function draw(figure, spec) {
    const before = drawn.get(figure);
    const names = (spec.series ?? []).map((s) => `${s.name}/${s.kind ?? ""}`).join("|");
    if (before && before.names === names) {
      before.spec = spec;
      if (before.details.open) fill(before);
      return render(before);
    }
    if (before) {
      sizes.unobserve(before.plot);
      Plotly.purge(before.plot);
    }
    const chart = { spec, names, figure, hidden: before?.hidden ?? new Set(), log: before?.log ?? Boolean(spec.log), keys: [] };
    const tools = element("div", { className: "tools" });
    const toggle = (label, on, press, ...key) => {
      const button = element("button", { type: "button" }, ...key, label);
      button.setAttribute("aria-pressed", on);
      button.addEventListener("click", () => {
        const now = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", now);
        press(now);
        render(chart);
      });
      tools.append(button);
      return button;
    };
    for (const series of spec.series ?? []) {
      const key = element("span", { className: "key" });
      key.setAttribute("aria-hidden", "true");
      chart.keys.push(key);
      toggle(series.name, !chart.hidden.has(series.name), (on) => on ? chart.hidden.delete(series.name) : chart.hidden.add(series.name), key);
    }
    if (!spec.heat) toggle("log scale", chart.log, (on) => { chart.log = on; }).classList.add("switch");
    const reset = element("button", { type: "button", className: "reset" }, "reset zoom");
    reset.addEventListener("click", () => Plotly.relayout(chart.plot, { "xaxis.autorange": true, "yaxis.autorange": true }));
    tools.append(reset);
    chart.plot = element("div", { className: "plot" });
    chart.plot.setAttribute("role", "img");
    chart.details = element("details", {}, element("summary", {}, "as a table"));
    chart.details.addEventListener("toggle", () => { if (chart.details.open) fill(chart); });
    const caption = element("figcaption", {}, element("span", {}, spec.title));
    if (spec.note) caption.append(element("span", { className: "badge warn" }, spec.note));
    figure.replaceChildren(caption, tools, chart.plot, chart.details);
    drawn.set(figure, chart);
    sizes.observe(chart.plot);
    return render(chart);
  }

  // Plots follow the room that they have, which changes with the window, and with what is beside them.
  const sizes = new ResizeObserver((changes) => {
    for (const { target } of changes)
      if (!printing && target.isConnected && target.classList.contains("js-plotly-plot")) Plotly.Plots.resize(target);
  });

  function fill(chart) {
    const [head, rows] = table(chart.spec);
    const cells = (tag, values) => element("tr", {}, ...values.map((value) => element(tag, {}, text(value))));
    const made = element("table", {}, element("thead", {}, cells("th", head)), element("tbody", {}, ...rows.map((row) => cells("td", row))));
    const area = element("div", { className: "scroll", tabIndex: 0 }, made);
    area.setAttribute("role", "region");
    area.setAttribute("aria-label", `${chart.spec.title}, as a table`);
    chart.details.querySelector(".scroll")?.remove();
    chart.details.append(area);
  }

  const again = () => drawn.forEach((chart) => {
    render(chart);
    if (!printing) Plotly.Plots.resize(chart.plot);
  });
  dark.addEventListener("change", again);
  window.addEventListener("beforeprint", () => { printing = true; again(); });
  window.addEventListener("afterprint", () => { printing = false; again(); });

  // Buttons that copy a text: <button data-copy="id of the element that holds it">.
  async function copy(button) {
    const source = document.getElementById(button.dataset.copy);
    const content = source.value ?? source.textContent;
    const said = button.dataset.said ?? (button.dataset.said = button.textContent);
    try {
      await navigator.clipboard.writeText(content);
      button.textContent = "copied";
    } catch {
      // Pages from a file may not use the clipboard: select it for the reader instead.
      const range = document.createRange();
      range.selectNodeContents(source);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = document.execCommand("copy") ? "copied" : "selected: press Ctrl+C";
    }
    setTimeout(() => { button.textContent = said; }, 2000);
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button[data-copy]");
    if (button) copy(button);
  });

  return { draw, element, text };
})();
