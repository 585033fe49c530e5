"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const themes = ["system", "light", "dark"];
  const changed = []; // what is drawn with the colours of the theme

  function setTheme(name) {
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    byId("theme").textContent = `Theme: ${name}`;
    changed.forEach((draw) => draw());
  }

  function themeSwitch() {
    const button = byId("theme");
    let now = "system";
    try { now = localStorage.getItem("ringmpi-theme") || now; } catch { /* pages from disk may have no storage */ }
    if (!themes.includes(now)) now = "system";
    button.hidden = false;
    button.addEventListener("click", () => {
      now = themes[(themes.indexOf(now) + 1) % themes.length];
      try { localStorage.setItem("ringmpi-theme", now); } catch { /* then it holds for this page */ }
      setTheme(now);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(now));
    setTheme(now);
  }

  function contents() {
    const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
    const seen = new Set();
    const mark = () => {
      const first = [...links.keys()].filter((id) => seen.has(id)).pop();
      links.forEach((a, id) => (id === first ? a.setAttribute("aria-current", "true") : a.removeAttribute("aria-current")));
    };
    const watcher = new IntersectionObserver((entries) => {
      entries.forEach((e) => (e.isIntersecting ? seen.add(e.target.id) : seen.delete(e.target.id)));
      mark();
    }, { rootMargin: "0px 0px -70% 0px" });
    links.forEach((_, id) => watcher.observe(byId(id)));
  }

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

  /* Weights are 16-bit steps on a log scale from `low` to `high`; 0 is no weight at all. Little-endian, by head. */
  function decoded(data) {
    const raw = new DataView(bytes(data.steps).buffer);
    const count = raw.byteLength / 2;
    const steps = new Uint16Array(count);
    for (let n = 0; n < count; n++) steps[n] = raw.getUint16(2 * n, true);
    return steps;
  }

  function attentionMap() {
    const data = JSON.parse(byId("map-data").textContent);
    const canvas = byId("map"), select = byId("map-head"), readout = byId("map-readout");
    const described = canvas.getAttribute("aria-label");
    const steps = decoded(data), colours = bytes(data.colours);
    const rows = data.queries.length - 1, columns = data.keys.length - 1, cells = rows * columns;
    const whole = { row: 0, column: 0, span: Math.max(rows, columns) };
    let view = { ...whole }, cursor = null, box = null, head = 0;

    function image(which) {
      const picture = document.createElement("canvas");
      picture.width = columns; picture.height = rows;
      const context = picture.getContext("2d"), pixels = context.createImageData(columns, rows);
      const range = Math.log(data.high / data.low), shown = Math.log(data.high / data.darkest);
      for (let n = 0; n < cells; n++) {
        const step = steps[which * cells + n], below = (1 - (step - 1) / 65534) * range; // the largest, as a logarithm
        const colour = 3 * Math.round(255 * Math.max(0, 1 - below / shown));
        if (step) pixels.data.set([colours[colour], colours[colour + 1], colours[colour + 2], 255], 4 * n);
      }
      context.putImageData(pixels, 0, 0);
      return picture;
    }
    const images = data.names.map((_, n) => image(n));

    const weight = (row, column) => {
      const step = steps[head * cells + row * columns + column];
      return step ? data.low * (data.high / data.low) ** ((step - 1) / 65534) : 0;
    };
    const positions = (edges, n) => `${edges[n].toLocaleString("en")} to ${(edges[n + 1] - 1).toLocaleString("en")}`;

    function tell() {
      if (!cursor) return;
      const found = weight(cursor.row, cursor.column);
      const said = found ? `${(100 * found).toPrecision(3)} %${data.clipped && found <= data.low ? " or less" : ""}` : "nothing";
      readout.textContent = `${data.names[head]}: an average query of ${positions(data.queries, cursor.row)} ` +
        `gives ${said} of its weight to keys ${positions(data.keys, cursor.column)}.`;
    }

    /* Round positions within cells `from` to `to`, each with the place of it in cells. */
    function ticks(edges, from, to) {
      const rough = (edges[to] - edges[from]) / 4, ten = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
      const step = [1, 2, 5, 10].map((n) => n * ten).find((n) => n >= rough);
      const found = [];
      let cell = from;
      for (let at = Math.ceil(edges[from] / step) * step; at <= edges[to]; at += step) {
        while (cell + 1 < to && edges[cell + 1] <= at) cell++;
        found.push([at.toLocaleString("en"), cell + (at - edges[cell]) / (edges[cell + 1] - edges[cell])]);
      }
      return found;
    }

    function axes(context, style, side, high) {
      context.font = "12px system-ui, sans-serif";
      context.fillStyle = style.getPropertyValue("--quiet");
      context.strokeStyle = style.getPropertyValue("--line");
      context.lineWidth = 1;
      context.strokeRect(box.left + 0.5, box.top + 0.5, box.width, box.height);
      context.textAlign = "center"; context.textBaseline = "top";
      ticks(data.keys, view.column, view.column + box.columns).forEach(([text, place]) => {
        const x = box.left + (place - view.column) * box.cell;
        context.fillRect(x, box.top + box.height, 1, 5);
        context.fillText(text, Math.min(x, side - 20), box.top + box.height + 8);
      });
      context.textAlign = "right"; context.textBaseline = "middle";
      ticks(data.queries, view.row, view.row + box.rows).forEach(([text, place]) => {
        const y = box.top + (place - view.row) * box.cell;
        context.fillRect(box.left - 5, y, 5, 1);
        context.fillText(text, box.left - 8, Math.max(y, 8));
      });
      context.textAlign = "center"; context.textBaseline = "bottom";
      context.fillText("key position", box.left + box.width / 2, high - 4);
      context.save();
      context.translate(0, box.top + box.height / 2); context.rotate(-Math.PI / 2); context.textBaseline = "top";
      context.fillText("query position", 0, 0);
      context.restore();
    }

    function draw() {
      const side = canvas.clientWidth, dense = window.devicePixelRatio || 1;
      if (!side) return;
      const left = 62, top = 8, below = 46, cell = (side - left - 12) / view.span;
      const across = Math.min(view.span, columns), down = Math.min(view.span, rows);
      const high = top + Math.min(whole.span, rows) / whole.span * view.span * cell + below;
      canvas.width = Math.round(side * dense); canvas.height = Math.round(high * dense);
      canvas.style.height = `${high}px`;
      const context = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
      context.scale(dense, dense);
      box = { left, top, cell, columns: across, rows: down, width: across * cell, height: down * cell };
      context.fillStyle = style.getPropertyValue("--raised");
      context.fillRect(box.left, box.top, box.width, box.height);
      context.imageSmoothingEnabled = false;
      context.drawImage(images[head], view.column, view.row, across, down, box.left, box.top, box.width, box.height);
      axes(context, style, side, high);
      if (cursor) {
        for (const [colour, width] of [["--paper", 5], ["--ink", 2]]) { // seen on dark cells and on bright ones
          context.strokeStyle = style.getPropertyValue(colour); context.lineWidth = width;
          context.strokeRect(box.left + (cursor.column - view.column) * cell, box.top + (cursor.row - view.row) * cell, cell, cell);
        }
      }
    }

    const clamp = (x, most) => Math.max(0, Math.min(x, most));
    function look(row, column, span) {
      const wide = Math.max(Math.min(4, whole.span), Math.min(span, whole.span));
      view = { span: wide, row: clamp(row, Math.max(rows - wide, 0)), column: clamp(column, Math.max(columns - wide, 0)) };
      byId("map-out").disabled = byId("map-whole").disabled = wide === whole.span;
      byId("map-in").disabled = wide <= 4;
      draw();
    }
    function zoom(factor) {
      const span = Math.round(view.span * factor);
      const centre = cursor || { row: view.row + view.span / 2, column: view.column + view.span / 2 };
      look(Math.round(centre.row - span / 2), Math.round(centre.column - span / 2), span);
    }
    function move(down, right) {
      const at = cursor || { row: view.row, column: view.column };
      cursor = { row: clamp(at.row + down, rows - 1), column: clamp(at.column + right, columns - 1) };
      const into = (n, from) => (n < from ? n : n >= from + view.span ? n - view.span + 1 : from);
      look(into(cursor.row, view.row), into(cursor.column, view.column), view.span);
      tell();
    }
    function choose(which) {
      head = clamp(which, data.names.length - 1);
      select.value = head;
      byId("map-before").disabled = head === 0;
      byId("map-after").disabled = head === data.names.length - 1;
      document.querySelectorAll("#map-heads button").forEach((b, n) => b.setAttribute("aria-pressed", String(n === head)));
      canvas.setAttribute("aria-label", `${described} Shown: ${data.names[head]}.`);
      draw();
      tell();
    }
    function point(event) {
      const where = canvas.getBoundingClientRect();
      const row = Math.floor(view.row + (event.clientY - where.top - box.top) / box.cell);
      const column = Math.floor(view.column + (event.clientX - where.left - box.left) / box.cell);
      if (row < view.row || column < view.column || row >= view.row + box.rows || column >= view.column + box.columns) return;
      cursor = { row, column };
      draw();
      tell();
    }

    const keys = {
      ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0), ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1),
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => look(0, 0, whole.span),
    };
    canvas.addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      keys[event.key]();
    });
    canvas.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") point(event); });
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("dblclick", () => zoom(0.5));
    select.addEventListener("change", () => choose(Number(select.value)));
    byId("map-before").addEventListener("click", () => choose(head - 1));
    byId("map-after").addEventListener("click", () => choose(head + 1));
    byId("map-in").addEventListener("click", () => zoom(0.5));
    byId("map-out").addEventListener("click", () => zoom(2));
    byId("map-whole").addEventListener("click", () => look(0, 0, whole.span));
    if (data.names.length > 1) images.forEach((picture, n) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(picture, document.createTextNode(data.names[n]));
      button.addEventListener("click", () => choose(n));
      byId("map-heads").append(button);
    });
    changed.push(draw);
    new ResizeObserver(draw).observe(canvas);
    look(0, 0, whole.span);
    choose(0);
  }

  contents();
  if (byId("map")) attentionMap();
  themeSwitch();
})();
