"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const every = (selector, within = document) => [...within.querySelectorAll(selector)];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const off = new Set(); // the labels that a reader has switched off
  const drawn = new Map(); // canvas -> its chart
  const BEST = { color: "#666666", dark: "#aaaaaa", point: false, turn: 0, hollow: false };

  // ---- charts -----------------------------------------------------------------------------------------

  const styleOf = (line) => data.styles[line.label] ?? BEST;
  const colourOf = (line) => (dark.matches ? styleOf(line).dark : styleOf(line).color);
  const isHidden = (line) => !line.always && off.has(line.label);

  function dataset(line, kind) {
    const style = styleOf(line), colour = colourOf(line), few = kind === "length";
    const strength = line.of > 1 ? 1 - 0.65 * (line.head / (line.of - 1)) : 1;
    const shade = strength === 1 ? colour : colour + Math.round(strength * 255).toString(16).padStart(2, "0");
    return {
      label: line.label,
      line,
      hidden: isHidden(line),
      data: line.points.map(([x, y, low, high, said]) => ({ x, y, low, high, said })),
      borderColor: shade,
      backgroundColor: style.hollow ? css("--card") : shade,
      borderWidth: few ? 2 : 1.75,
      borderDash: line.dashed ? [5, 4] : [],
      pointStyle: kind === "bias" ? false : style.point,
      pointRotation: style.turn,
      pointRadius: few ? 4 : 2.5,
      pointHoverRadius: 6,
      pointBorderColor: shade,
      pointBorderWidth: 1.5,
    };
  }

  const whiskers = {
    id: "whiskers", // from low to high of every point, and the trained length
    beforeDatasetsDraw(chart, _, { trained }) {
      const { ctx, chartArea: area, scales: { x } } = chart, place = x.getPixelForValue(trained);
      if (!(place >= area.left && place <= area.right)) return;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = css("--soft");
      ctx.setLineDash([2, 3]);
      ctx.beginPath(), ctx.moveTo(place, area.top), ctx.lineTo(place, area.bottom), ctx.stroke();
      ctx.font = `11px ${css("--sans")}`;
      const left = place + 4 + ctx.measureText("trained length").width > area.right;
      ctx.textAlign = left ? "right" : "left";
      ctx.fillText("trained length", place + (left ? -4 : 4), area.top - 4);
      ctx.restore();
    },
    afterDatasetsDraw(chart) {
      const { ctx, chartArea: area, scales: { x, y } } = chart;
      ctx.save();
      ctx.beginPath(), ctx.rect(area.left, area.top, area.width, area.height), ctx.clip();
      ctx.lineWidth = 1.25;
      for (const { index } of chart.getSortedVisibleDatasetMetas()) {
        const set = chart.data.datasets[index];
        ctx.strokeStyle = set.borderColor;
        for (const { x: value, low, high } of set.data.filter((point) => point.low !== null)) {
          const at = x.getPixelForValue(value);
          ctx.beginPath(), ctx.moveTo(at, y.getPixelForValue(low)), ctx.lineTo(at, y.getPixelForValue(high)), ctx.stroke();
        }
      }
      ctx.restore();
    },
  };

  const plain = (value) => (Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential() : String(Number(value.toPrecision(6))));

  function xAxis(spec, log) {
    const ticks = spec.ticks.map((value) => ({ value }));
    const first = spec.ticks[0], last = spec.ticks.at(-1), room = log ? (last / first) ** 0.05 : (last - first) * 0.04;
    const told = (value) => (spec.kind === "length" ? [value.toLocaleString("en"), `${Number((value / spec.trained).toPrecision(3))}x`] : value.toLocaleString("en"));
    return {
      type: log ? "logarithmic" : "linear",
      title: { display: true, text: spec.x },
      min: spec.kind !== "length" ? 1 : log ? first / room : Math.max(0, first - room),
      max: spec.kind !== "length" ? undefined : log ? last * room : last + room,
      grid: { display: false },
      afterBuildTicks: (axis) => { if (log || spec.kind === "length") axis.ticks = ticks.filter(({ value }) => value >= axis.min && value <= axis.max); },
      ticks: { callback: (value) => told(value), maxRotation: 0, autoSkip: true, autoSkipPadding: 8 },
    };
  }

  function yAxis(spec, log) {
    const lines = spec.lines.filter((line) => !isHidden(line)).flatMap((line) => line.points);
    const least = ([, y, end]) => (end === null ? y : log ? Math.max(end, y / 3) : end); // on a logarithmic axis zero is far
    const low = Math.min(...lines.map(least)), high = Math.max(...lines.map(([, y, , end]) => end ?? y));
    return {
      type: log ? "logarithmic" : "linear",
      title: { display: true, text: spec.y },
      min: spec.floor ?? undefined,
      max: spec.ceiling ?? undefined,
      suggestedMin: Number.isFinite(low) ? low : undefined,
      suggestedMax: Number.isFinite(high) ? high : undefined,
      grid: { color: css("--grid") },
      ticks: { callback: (value) => plain(value), maxTicksLimit: 9 },
    };
  }

  // Many lines at one place would not fit: then the nearest of all.
  const pointing = (spec) => ({ mode: "nearest", axis: spec.lines.filter((line) => !isHidden(line)).length > 12 ? "xy" : "x", intersect: false });

  function axes(canvas, spec) {
    const log = (axis) => canvas.closest("figure").querySelector(`[data-axis=${axis}]`)?.checked ?? false;
    return { x: xAxis(spec, log("x")), y: yAxis(spec, log("y")) };
  }

  function draw(canvas) {
    const spec = data.charts[Number(canvas.dataset.chart)];
    Chart.defaults.color = css("--soft");
    Chart.defaults.borderColor = css("--line");
    Chart.defaults.font.family = css("--sans");
    const tooltip = {
      backgroundColor: css("--card"), titleColor: css("--ink"), bodyColor: css("--ink"), borderColor: css("--soft"), borderWidth: 1, padding: 9, boxPadding: 5, caretSize: 0,
      itemSort: (a, b) => b.parsed.y - a.parsed.y,
      callbacks: {
        title: ([item]) => (item ? (spec.kind === "length" ? `${item.parsed.x.toLocaleString("en")} tokens fed` : spec.kind === "bias" ? spec.title : `${plain(Math.round(item.parsed.x))} tokens seen`) : ""),
        label: ({ dataset, raw }) => (spec.kind === "bias" ? raw.said : `${dataset.label}: ${raw.said}`),
        labelColor: ({ dataset }) => ({ borderColor: dataset.borderColor, backgroundColor: dataset.borderColor }),
      },
    };
    drawn.get(canvas)?.destroy();
    drawn.set(canvas, new Chart(canvas, {
      type: "line",
      data: { datasets: spec.lines.map((line) => dataset(line, spec.kind)) },
      options: {
        maintainAspectRatio: false,
        animation: false,
        interaction: pointing(spec),
        layout: { padding: { top: 16, right: 8 } },
        scales: axes(canvas, spec),
        plugins: { legend: { display: false }, tooltip, whiskers: { trained: spec.trained } },
      },
      plugins: [whiskers],
    }));
  }

  function refresh() {
    for (const [canvas, chart] of drawn) {
      const spec = data.charts[Number(canvas.dataset.chart)];
      chart.data.datasets.forEach((set, i) => chart.setDatasetVisibility(i, !isHidden(set.line)));
      chart.options.scales = axes(canvas, spec);
      chart.options.interaction = pointing(spec);
      chart.update();
    }
    for (const panel of every("[data-label]")) panel.hidden = off.has(panel.dataset.label);
  }

  // ---- what is on and off -----------------------------------------------------------------------------

  const tabs = every("[data-tab]"), chips = document.querySelector(".chips");
  let shown = 0;

  function labelsOf(group) {
    const within = every(`#figures [data-group="${group}"]`);
    const charts = within.flatMap((part) => every("canvas", part)).flatMap((canvas) => data.charts[Number(canvas.dataset.chart)].lines);
    const maps = within.flatMap((part) => every("[data-label]", part)).map((panel) => panel.dataset.label);
    return [...new Set([...charts.filter((line) => !line.always).map((line) => line.label), ...maps])];
  }

  function button(words, press) {
    const made = document.createElement("button");
    made.type = "button";
    made.append(words);
    made.addEventListener("click", press);
    return made;
  }

  function sample(line) {
    const made = document.createElement("canvas"), size = 14, sharp = 2, style = styleOf(line);
    [made.width, made.height] = [2 * size * sharp, size * sharp];
    made.style.cssText = `width:${2 * size}px;height:${size}px`;
    const ctx = made.getContext("2d");
    ctx.scale(sharp, sharp);
    ctx.strokeStyle = colourOf(line);
    ctx.fillStyle = style.hollow ? css("--card") : colourOf(line);
    ctx.lineWidth = 1.75;
    ctx.beginPath(), ctx.moveTo(0, size / 2), ctx.lineTo(2 * size, size / 2), ctx.stroke();
    const look = { pointStyle: style.point, rotation: style.turn, radius: 4, borderWidth: 1.75 };
    Chart.helpers.drawPoint(ctx, { options: look, ...look }, size, size / 2);
    return made;
  }

  function showChips() {
    const labels = labelsOf(shown);
    chips.replaceChildren();
    if (labels.length > 1) {
      const none = labels.every((label) => off.has(label));
      chips.append(button(none ? "all" : "none", () => {
        labels.forEach((label) => (none ? off.delete(label) : off.add(label)));
        showChips(), refresh();
      }));
    }
    for (const label of labels) {
      const chip = button(label, () => {
        off.delete(label) || off.add(label);
        chip.setAttribute("aria-pressed", String(!off.has(label)));
        refresh();
      });
      chip.setAttribute("aria-pressed", String(!off.has(label)));
      chip.dataset.chip = label;
      chip.title = label;
      chip.prepend(sample({ label }));
      chips.append(chip);
    }
  }

  function show(group) {
    shown = group;
    for (const part of every("[data-group]")) part.hidden = Number(part.dataset.group) !== group;
    tabs.forEach((tab, i) => tab.setAttribute("aria-selected", String(i === group)));
    every(`[data-group="${group}"] canvas`).filter((canvas) => !drawn.has(canvas)).forEach(draw);
    showChips(), refresh();
  }

  tabs.forEach((tab, i) => tab.addEventListener("click", () => show(i)));
  every("[data-axis]").forEach((box) => box.addEventListener("change", refresh));
  dark.addEventListener("change", () => { [...drawn.keys()].forEach(draw), showChips(); });
  show(0);

  // ---- tables -----------------------------------------------------------------------------------------

  function sort(table, column, up) {
    const key = (row) => { const cell = row.cells[column]; return cell.dataset.v === undefined ? null : Number(cell.dataset.v); };
    const numbers = [...table.tBodies[0].rows].some((row) => key(row) !== null);
    const words = (row) => row.cells[column].textContent;
    const order = (a, b) => {
      if (!numbers) return (up ? 1 : -1) * words(a).localeCompare(words(b), "en", { numeric: true });
      const [x, y] = [key(a), key(b)];
      return x === null || y === null ? (x === null) - (y === null) : (up ? 1 : -1) * (x - y); // without a number: last
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
  }

  for (const head of every(".sortable thead th")) {
    head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of head.parentElement.cells) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      sort(head.closest("table"), head.cellIndex, up);
    });
  }

  // ---- what differs between two runs ------------------------------------------------------------------

  const picks = every("[data-run]"), all = document.querySelector("[data-all]");

  function compare() {
    const [one, other] = picks.map((pick) => ({ ...data.runs.common, ...data.runs.own[Number(pick.value)] }));
    const keys = [...new Set([...Object.keys(one), ...Object.keys(other)])];
    const differ = keys.filter((key) => one[key] !== other[key]);
    document.querySelector("[data-said]").textContent = differ.length ? `${differ.length} of ${keys.length} settings differ` : `All ${keys.length} settings are the same`;
    const rows = [...differ, ...(all.checked ? keys.filter((key) => !differ.includes(key)) : [])].map((key) => {
      const row = document.createElement("tr");
      row.className = all.checked && differ.includes(key) ? "differs" : "";
      const head = document.createElement("th");
      head.textContent = key;
      row.append(head);
      for (const run of [one, other]) row.insertCell().textContent = run[key] ?? "–";
      return row;
    });
    document.querySelector(".settings tbody").replaceChildren(...rows);
    document.querySelector(".settings").hidden = !rows.length;
  }

  if (picks.length) {
    [...picks, all].forEach((part) => part.addEventListener("change", compare));
    compare();
  }
})();
