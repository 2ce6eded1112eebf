// The run that is followed: asks for what is new once a second, until the run is finished.
"use strict";

const Live = (() => {
  const byId = (id) => document.getElementById(id);
  const rounds = [];
  let done = 0, told = null, drawn = null;

  const clock = (seconds) => {
    if (seconds === null || seconds === undefined) return "";
    if (seconds < 1) return "less than a second left";
    if (seconds < 90) return `about ${Math.round(seconds)} s left`;
    return seconds < 5400 ? `about ${Math.round(seconds / 60)} min left` : `about ${(seconds / 3600).toFixed(1)} h left`;
  };
  const STATES = { starting: "starting", "going on": "going on", finished: "finished", stopped: "stopped", quiet: "no new round for a while; it may have stopped" };

  const say = (id, value) => { if (byId(id).textContent !== value) byId(id).textContent = value; };

  function show(now) {
    say("live-title", `The run ${now.summary?.name ?? now.name}`);
    const bar = byId("live-progress");
    bar.max = now.rounds ?? 1;
    bar.value = now.done;
    say("live-state", STATES[now.state]);
    say("live-done", now.rounds ? `${now.done} / ${now.rounds}` : String(now.done));
    byId("live-stopped").hidden = !now.stopped;
    if (now.stopped) {
      say("live-why", now.stopped.reason ? `The run stopped: ${now.stopped.reason}` : "The run was interrupted.");
      say("live-drawn", now.stopped.drawn ? "Agents were drawn for the next round and may have answered; ε counts that." : "");
      say("live-resume", now.stopped.goes_on);
    }
    say("live-left", now.state === "finished" ? `${now.sampled ?? now.summary.sampled} of ${now.agents ?? now.summary.agents} agents in each` : clock(now.left));
    const last = rounds.findLast((r) => r.excess_risk !== undefined || r.cost !== undefined);
    const name = last && last.excess_risk === undefined ? "cost" : "excess_risk";
    say("live-risk-name", name === "cost" ? "cost F(w)" : "excess risk");
    say("live-risk", last ? Charts.text(last[name]) : "–");
    const last_of = (curve) => (curve.length ? curve.at(-1)[1] : 0);
    const figures = now.summary?.private ? { global: now.summary.epsilon_global, ledger: now.summary.epsilon_ledger_max }
      : now.epsilon ? { global: last_of(now.epsilon.global), ledger: last_of(now.epsilon.ledger) } : null;
    say("live-global", figures ? Charts.text(figures.global) : now.private === false ? "∞" : "–");
    say("live-ledger", figures ? Charts.text(figures.ledger) : now.private === false ? "∞" : "–");
    const delta = now.delta ?? now.summary?.delta;
    say("live-global-note", delta ? `at δ = ${Charts.text(delta)}; agents drawn as announced` : "agents drawn as announced");
    const tenth = Math.floor(10 * now.done / (now.rounds ?? 1));
    const words = now.state === "finished" ? "The run is finished." : now.state === "stopped" ? `The run has stopped; ${now.done} of ${now.rounds ?? "?"} rounds are done.` : `${now.done} of ${now.rounds ?? "?"} rounds done.`;
    if (`${now.state}/${tenth}` !== told) { told = `${now.state}/${tenth}`; say("live-said", words); }
  }

  function draw({ delta, epsilon }) {
    const series = (key) => rounds.filter((r) => typeof r[key] === "number");
    const list = [];
    const note = "diagnostic, not private";
    const x = "round t";
    for (const [key, title, y] of [["excess_risk", "Excess risk", "F(w) − F(w*)"], ["cost", "Cost", "F(w)"], ["gradient_norm", "Gradient norm", "‖grad F(w)‖"]]) {
      const found = series(key);
      if (!found.length || (key === "cost" && series("excess_risk").length)) continue;
      const least = key === "cost" ? -Infinity : 1e-17;
      list.push({ id: key, title, note, x, y, log: key !== "cost", free: key === "cost",
        series: [{ name: title.toLowerCase(), x: found.map((r) => r.round), y: found.map((r) => Math.max(r[key], least)) }] });
    }
    if (epsilon?.ledger.length) {
      const step = (name, pairs) => ({ name, kind: "step", x: [0, ...pairs.map((p) => p[0])], y: [0, ...pairs.map((p) => p[1])] });
      list.push({ id: "epsilon", title: "ε so far", x, y: `ε at δ = ${Charts.text(delta)}`,
        series: [step("planned (global)", epsilon.global), step("drawn (largest ledger)", epsilon.ledger)] });
    }
    const area = byId("live-charts");
    for (const spec of list) {
      let figure = byId(`live-${spec.id}`);
      if (!figure) {
        figure = Charts.element("figure", { className: "chart", id: `live-${spec.id}` });
        area.append(figure);
      }
      Charts.draw(figure, spec);
    }
  }

  async function look() {
    const answer = await fetch(`/api/run?after=${done}`);
    if (!answer.ok) throw new Error((await answer.json()).errors?.join("; ") ?? answer.statusText);
    const now = await answer.json();
    if (now.done < done) { rounds.length = 0; done = 0; return true; }  // it was resumed from an earlier round
    rounds.push(...now.new);
    const before = done;
    done = rounds.length ? rounds.at(-1).round : 0;
    show(now);
    if (done > before || before === 0 || now.state !== drawn) draw(now);
    drawn = now.state;
    if (now.state === "finished" && done === now.done) return false;
    return done < now.done ? "more" : true;
  }

  async function follow() {
    byId("live").hidden = false;
    for (;;) {
      let go = true;
      try {
        go = await look();
      } catch (error) {
        say("live-state", `cannot be followed: ${error.message}`);
      }
      if (go === false) return;
      if (go !== "more") await new Promise((resume) => setTimeout(resume, 1000));
    }
  }

  return { follow };
})();
