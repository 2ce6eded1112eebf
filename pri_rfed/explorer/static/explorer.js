// Settings: every change asks for the figures at once (an upper bound in a moment), the exact ones when it rests.
"use strict";

(() => {
  const byId = (id) => document.getElementById(id);
  const { element, text } = Charts;

  // Sliders go over round numbers; any other can be typed.
  const decades = (low, high, per = [1, 2, 3, 4, 5, 6, 8]) => {
    const out = [];
    for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k++)
      for (const m of per) {
        const value = Number((m * 10 ** k).toPrecision(3));
        if (value >= low && value <= high) out.push(value);
      }
    return out;
  };
  const fine = [1, 1.2, 1.4, 1.6, 1.8, 2, 2.2, 2.5, 2.8, 3.2, 3.6, 4, 4.5, 5, 5.6, 6.3, 7, 8, 9];
  const whole = (high) => [...new Set([...decades(1, high), ...Array.from({ length: Math.min(10, high) }, (_, i) => i + 1), 12, 15, 25, 150, 250, 1500])].filter((v) => v <= high).sort((a, b) => a - b);
  const KNOBS = {
    agents: { symbol: "N", label: "agents", values: whole(5000) },
    sampled: { symbol: "s", label: "of them in each round", values: whole(5000), below: "agents" },
    rounds: { symbol: "T", label: "rounds", values: whole(5000) },
    records: { symbol: "n", label: "records of each agent", values: whole(100000) },
    batch: { symbol: "b", label: "records in a step", values: whole(100000), below: "records" },
    steps: { symbol: "K", label: "local steps in a round", values: whole(500) },
    delta: { symbol: "δ", label: "failure probability", values: decades(1e-10, 1e-2, [1, 2, 5]) },
    epsilon: { symbol: "ε", label: "target, before the run", values: decades(0.05, 20, fine), mode: "epsilon" },
    noise: { symbol: "σ/Δ", label: "noise by sensitivity", values: decades(0.2, 500, fine), mode: "noise" },
  };
  const setting = {};
  let mode = "epsilon", begin = null;

  const nearest = (values, value) => values.reduce((best, v, i) => (Math.abs(Math.log(v / value)) < Math.abs(Math.log(values[best] / value)) ? i : best), 0);

  // ---- the form

  function build() {
    for (const [name, knob] of Object.entries(KNOBS)) {
      const number = element("input", { type: "number", id: name, min: 0, step: "any", inputMode: "decimal" });
      const label = element("label", { htmlFor: name }, element("b", {}, knob.symbol), ` ${knob.label}`);
      const range = element("input", { type: "range", id: `${name}-slider`, min: 0, step: 1 });
      range.setAttribute("aria-label", `${knob.symbol}, ${knob.label}`);
      number.setAttribute("aria-describedby", "mistakes");
      knob.row = element("div", { className: "slider" }, label, range, number);
      Object.assign(knob, { number, range });
      byId(knob.mode ? "noise-sliders" : "sliders").append(knob.row);
      range.addEventListener("input", () => change(name, stops(knob)[Number(range.value)]));
      number.addEventListener("input", () => { if (number.value !== "") change(name, Number(number.value), true); });
      number.addEventListener("change", () => show(name));
    }
    for (const which of ["epsilon", "noise"])
      byId(`mode-${which}`).addEventListener("change", () => {
        mode = which;
        // The noise that was found, or the epsilon that the noise has, is where the other way begins.
        if (which === "noise" && shown.noise) setting.noise = Number(shown.noise.toPrecision(4));
        if (which === "epsilon" && shown.global) setting.epsilon = Number(shown.global.toPrecision(4));
        showAll();
        ask();
      });
  }

  // Where a number has a bound, its slider ends there.
  function stops(knob) {
    if (!knob.below) return knob.values;
    const most = setting[knob.below];
    return [...knob.values.filter((v) => v < most), most];
  }

  function change(name, value, typed = false) {
    const full = setting.batch === setting.records;
    setting[name] = value;
    if (name === "records" && full) setting.batch = value;
    for (const [other, knob] of Object.entries(KNOBS))
      if (knob.below === name && setting[other] > value && value >= 1 && Number.isInteger(value)) setting[other] = value;
    for (const other of Object.keys(KNOBS)) if (!(typed && other === name)) show(other);
    if (typed) show(name, true);
    ask();
  }

  function show(name, keep = false) {
    const knob = KNOBS[name];
    const values = stops(knob);
    knob.range.max = values.length - 1;
    knob.range.value = nearest(values, setting[name]);
    knob.range.setAttribute("aria-valuetext", name === "batch" && setting.batch === setting.records ? `${setting.batch}, all` : text(setting[name]));
    if (!keep) knob.number.value = name === "delta" ? text(setting[name]) : setting[name];
    knob.row.hidden = Boolean(knob.mode) && knob.mode !== mode;
  }

  function showAll() {
    byId(`mode-${mode}`).checked = true;
    for (const name of Object.keys(KNOBS)) show(name);
  }

  const chosen = () => {
    const out = {};
    for (const [name, knob] of Object.entries(KNOBS)) if (!knob.mode || knob.mode === mode) out[name] = setting[name];
    return out;
  };

  // ---- figures

  async function post(path, body, signal) {
    const answer = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });
    const content = answer.status === 204 ? null : await answer.json();
    if (!answer.ok || content?.errors) throw Object.assign(new Error("refused"), { errors: content?.errors ?? [answer.statusText] });
    return content;
  }

  // One question is under way at most; of those that come meanwhile the last one is asked next.
  let asking = false, again = false, resting = null, exactly = null;
  const shown = { noise: null, global: null };

  async function ask() {
    exactly?.abort();
    clearTimeout(resting);
    byId("precision").textContent = "…";
    if (asking) { again = true; return; }
    asking = true;
    byId("figures").classList.add("waiting");
    let asked = null;
    do {
      again = false;
      asked = chosen();
      try {
        figures(await post("/api/figures", asked), asked);
      } catch (error) {
        mistakes(error);
        asked = null;
      }
    } while (again);
    asking = false;
    byId("figures").classList.remove("waiting");
    if (asked) resting = setTimeout(() => exact(asked), 250);
  }

  function mistakes(error) {
    if (error.name === "AbortError") return;
    const errors = error.errors ?? ["the explorer does not answer; is it still running?"];
    byId("mistakes").textContent = errors.join("\n");
    for (const [name, knob] of Object.entries(KNOBS)) knob.number.setAttribute("aria-invalid", errors.some((line) => line.startsWith(`${name} =`)));
    for (const id of ["global", "ledger", "local", "claimed", "noise-found"]) byId(id).textContent = "–";
    byId("precision").textContent = "";
    shown.noise = shown.global = null;
  }

  const epsilon = (value) => (value === null || value === undefined ? "∞" : text(value));

  function figures(found, asked) {
    byId("mistakes").textContent = "";
    for (const knob of Object.values(KNOBS)) knob.number.removeAttribute("aria-invalid");
    numbers(found);
    byId("claimed").textContent = epsilon(found.claimed);
    byId("noise-found").textContent = text(found.noise);
    shown.noise = found.noise;
    byId("precision").textContent = `upper bounds, by ${found.accountant} on a coarse grid, in ${Math.round(found.milliseconds)} ms; the exact figures follow`;
    byId("config").textContent = found.config;
    byId("caveat").textContent = `Theorem 4.2 is ${found.caveat}.`;
    if (found.neighbours) byId("unit").textContent = found.neighbours;
    byId("misfit").hidden = !found.misfit;
    byId("misfit").textContent = found.misfit ? `The figures stand, but it cannot be run: ${found.misfit}.` : "";
    const same = asked.rounds === curves.rounds;
    curves = { rounds: asked.rounds, delta: asked.delta, global: same ? curves.global : [], ledger: same ? curves.ledger : [], now: found };
    drawUtility();
  }

  function numbers(found) {
    byId("global").textContent = epsilon(found.global);
    byId("ledger").textContent = epsilon(found.ledger);
    byId("local").textContent = epsilon(found.local);
    byId("ledger-note").textContent = `whoever chose the agents; of one in ${found.busiest} rounds, typically the most` +
      (found.every_round !== undefined ? `. In all ${setting.rounds}: ${epsilon(found.every_round)}` : "");
    shown.global = found.global;
  }

  async function exact(asked) {
    exactly = new AbortController();
    const { signal } = exactly;
    const given = { ...asked, noise: shown.noise };
    delete given.epsilon;
    try {
      const found = await post("/api/exact", given, signal);
      numbers(found);
      byId("precision").textContent = "exact: the smallest figure that a sound accountant shows";
      const rows = Object.entries(found.accountants).map(([name, entry]) => {
        const figure = (which) => (`${which}_unsupported` in entry ? "–" : epsilon(entry[`${which}_epsilon`]));
        const said = entry.sound ? "sound" : element("strong", { className: "warn-text" }, "not a guarantee");
        return element("tr", {}, element("th", { scope: "row" }, name), element("td", { className: "number" }, figure("global")), element("td", { className: "number" }, figure("ledger")), element("td", {}, said));
      });
      byId("accountants").querySelector("tbody").replaceChildren(...rows);
      byId("figures-said").textContent = `Epsilon before the run ${epsilon(found.global)}, after it ${epsilon(found.ledger)}, noise ${text(shown.noise)}. Theorem 4.2, not a guarantee: ${byId("claimed").textContent}.`;
      const points = await post("/api/curves", given, signal);
      if (points) {
        curves = { ...curves, global: points.map((p) => [p.round, p.global]), ledger: points.map((p) => [p.round, p.ledger]) };
        drawRounds();
      }
    } catch (error) {
      mistakes(error);
    }
  }

  // ---- charts

  let curves = { rounds: 0, delta: 1e-5, global: [], ledger: [], now: null };

  function drawRounds() {
    const line = (name, pairs) => ({ name, x: [0, ...pairs.map((p) => p[0])], y: [0, ...pairs.map((p) => p[1])] });
    Charts.draw(byId("chart-rounds"), {
      id: "rounds", title: "ε round by round", x: "rounds", y: `ε at δ = ${text(curves.delta)}`,
      series: [line("before the run", curves.global), line("after it: the busiest agent", curves.ledger)],
    });
  }

  function drawUtility() {
    const finished = trials.filter((trial) => trial.state === "finished" && trial.progress?.summary?.private && trial.progress.summary.excess_risk !== null);
    const series = (begin.utility?.series ?? []).map((s) => ({ ...s, kind: "points" }));
    series.push({
      name: "simulated here", kind: "points",
      x: finished.map((t) => t.progress.summary.epsilon_global), y: finished.map((t) => Math.max(t.progress.summary.excess_risk, 1e-16)),
      text: finished.map((t) => `N ${t.setting.agents}, s ${t.setting.sampled}, T ${t.setting.rounds}, n ${t.setting.records}, b ${t.setting.batch}, K ${t.setting.steps}`),
    });
    const close = nearest_point();
    if (close) series.push({ name: "nearest to this setting", kind: "points", size: 14, x: [close.epsilon], y: [close.risk] });
    Charts.draw(byId("chart-utility"), {
      id: "utility", title: "Utility against privacy", note: "diagnostic, not private", x: "ε before the run", y: "excess risk F(w) − F(w*)",
      log: true, logx: true, series, mark: shown.global ? { at: shown.global, name: "this setting" } : null,
      empty: "simulate a setting to see its excess risk here",
    });
  }

  // The point of the sweep whose numbers differ least from the setting, by factors.
  function nearest_point() {
    const points = begin.utility?.points ?? [];
    if (!points.length || !shown.global) return null;
    const now = { ...setting, epsilon: shown.global };
    const names = ["agents", "sampled", "rounds", "records", "batch", "steps", "epsilon"];
    const apart = (point) => names.reduce((sum, name) => sum + (point[name] > 0 ? Math.log(point[name] / now[name]) ** 2 : 0), 0);
    const close = points.reduce((best, point) => (apart(point) < apart(best) ? point : best));
    const at = names.map((name) => `${KNOBS[name].symbol} ${close[name] === null ? "–" : text(close[name])}`).join(", ");
    const over = close.seeds > 1 ? `, quartiles ${text(close.quartiles[0])} and ${text(close.quartiles[1])} over ${close.seeds} seeds` : "";
    byId("nearest").hidden = false;
    byId("nearest").textContent = `Nearest point of the sweep: excess risk ${text(close.risk)}${over} (not private) at ${at}.`;
    return close;
  }

  // ---- quick simulations

  let trials = [];

  function drawTrials() {
    const rows = trials.map((trial) => {
      const s = trial.setting, end = trial.progress?.summary;
      const figure = (value) => element("td", { className: "number" }, value === undefined || value === null ? "–" : text(value));
      return element("tr", {}, ...[s.agents, s.sampled, s.rounds, s.records, s.batch, s.steps, end?.noise, end?.epsilon_global, end?.epsilon_ledger_max, end?.excess_risk, end?.seconds].map(figure),
        element("td", {}, trial.state === "failed" ? `failed: ${trial.error}` : trial.state));
    });
    byId("trials").querySelector("tbody").replaceChildren(...rows);
    byId("trials").hidden = !rows.length;
    drawUtility();
  }

  async function simulate() {
    byId("simulate").disabled = true;
    byId("trial-said").textContent = "starting …";
    let trial;
    try {
      trial = await post("/api/trials", chosen());
    } catch (error) {
      byId("simulate").disabled = false;
      byId("trial-said").textContent = (error.errors ?? [error.message]).join("; ");
      return;
    }
    await watch(trial);
  }

  async function watch(trial) {
    const bar = byId("trial-progress");
    byId("simulate").disabled = true;
    byId("cancel").disabled = false;
    byId("cancel").onclick = () => post(`/api/trials/${trial.number}/cancel`, {});
    bar.hidden = false;
    bar.removeAttribute("value");
    while (trial.state === "running") {
      await new Promise((resume) => setTimeout(resume, 250));
      trial = await (await fetch(`/api/trials/${trial.number}?after=${trial.setting.rounds}`)).json();
      if (trial.progress?.rounds) {
        bar.max = trial.progress.rounds;
        bar.value = trial.progress.done;
        byId("trial-said").textContent = `round ${trial.progress.done} of ${trial.progress.rounds}`;
      }
    }
    bar.hidden = true;
    byId("cancel").disabled = true;
    byId("simulate").disabled = false;
    trials = await (await fetch("/api/trials")).json();
    const end = trial.progress?.summary;
    byId("trial-said").textContent =
      trial.state !== "finished" ? (trial.state === "failed" ? `failed: ${trial.error}` : trial.state)
        : `excess risk ${text(end.excess_risk)} (not private) at ε ${epsilon(end.epsilon_global)}, in ${text(end.seconds)} s`;
    drawTrials();
  }

  // ---- beginning

  async function open() {
    build();
    try {
      begin = await (await fetch("/api/begin")).json();
    } catch {
      byId("trouble").hidden = false;
      byId("trouble").textContent = "The explorer does not answer; is it still running?";
      return;
    }
    byId("subject").textContent = `${begin.problem} by ${begin.trainer} · ${begin.base}` + (begin.available ? ` · ${begin.available} records in all` : "");
    byId("note").hidden = !begin.note;
    byId("note").textContent = begin.note ?? "";
    if (begin.federation) {
      byId("command").textContent = "pri-rfed server chosen.toml";
      byId("simulate").disabled = true;
      byId("trial-said").textContent = "the records are with their owners: there is nothing here to simulate with";
    }
    const { epsilon: target, noise, ...rest } = begin.start;
    Object.assign(setting, rest, { epsilon: target ?? 2, noise: noise ?? 5 });
    mode = target === null ? "noise" : "epsilon";
    if (begin.fixed) for (const name of ["agents", "records"]) KNOBS[name].number.disabled = KNOBS[name].range.disabled = true;
    showAll();
    byId("simulate").addEventListener("click", simulate);
    drawRounds();
    trials = await (await fetch("/api/trials")).json();
    drawTrials();
    if (begin.run) Live.follow();
    ask();
    const running = trials.find((trial) => trial.state === "running");
    if (running) watch(running);
  }
  open();
})();
