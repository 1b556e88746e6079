"use strict";
(() => {
  const all = (what, within = document) => [...within.querySelectorAll(what)];

  const copy = document.getElementById("copy");
  if (copy) {
    const command = document.getElementById("command");
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(command.textContent);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(command);
        copy.textContent = "Selected";
      }
    });
  }

  const form = document.getElementById("controls");
  if (!form) return;
  const count = document.getElementById("count");
  const clear = document.getElementById("clear");
  const races = all("section.race");
  const links = all(".races a");
  const usual = { race: races[0].id, view: "equal-rounds", bits: "total", q: "", alphabet: "", defense: "", status: "", pareto: "", sort: "rank", order: "ascending" };
  let state = { ...usual };

  const read = () => {
    const text = location.hash.slice(1);
    if (!text.includes("=")) return races.some((race) => race.id === text) ? { ...usual, race: text } : null;
    const found = { ...usual };
    for (const [key, value] of new URLSearchParams(text)) if (key in found) found[key] = value;
    if (!races.some((race) => race.id === found.race)) found.race = usual.race;
    if (found.view !== "equal-bits") found.view = usual.view;
    if (found.bits !== "up") found.bits = usual.bits;
    if (found.order !== "descending") found.order = "ascending";
    return found;
  };

  const remember = () => {
    const said = Object.entries(state).filter(([key, value]) => value !== usual[key]);
    history.replaceState(null, "", "#" + (said.length ? new URLSearchParams(said) : state.race));
  };

  const fill = () => {
    for (const box of form.elements) {
      if (box.type === "radio" || box.type === "checkbox") box.checked = state[box.name] === box.value;
      else if (box.name) box.value = state[box.name];
      if (box.tagName === "SELECT" && box.selectedIndex < 0) box.value = state[box.name] = "";
    }
  };

  const texts = new Map(all(".board tbody tr").map((row) => [row, (row.textContent + " " + all("[title]", row).map((cell) => cell.title).join(" ")).toLowerCase()]));

  const matches = (row) =>
    state.q.toLowerCase().split(/\s+/).every((word) => texts.get(row).includes(word)) &&
    (!state.alphabet || row.dataset.alphabet === state.alphabet) &&
    (!state.defense || row.dataset.defense === state.defense) &&
    (!state.status || row.dataset.status === state.status) &&
    (!state.pareto || "pareto" in row.dataset);

  const sort = (table) => {
    const heads = all("thead th", table);
    let at = heads.findIndex((head) => head.dataset.key === state.sort);
    if (at < 0) [at, state.sort, state.order] = [0, "rank", "ascending"];
    heads.forEach((head, i) => (i === at ? head.setAttribute("aria-sort", state.order) : head.removeAttribute("aria-sort")));
    const body = table.tBodies[0];
    const value = (row) => row.cells[at].dataset.value;
    const numeric = [...body.rows].every((row) => !Number.isNaN(Number(value(row))));
    const sign = state.order === "ascending" ? 1 : -1;
    const place = new Map([...body.rows].map((row) => [row, Number(row.dataset.place)]));
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === "") || place.get(a) - place.get(b);
      return sign * (numeric ? x - y : x.localeCompare(y, "en")) || place.get(a) - place.get(b);
    };
    body.append(...[...body.rows].sort(compare));
  };

  const apply = () => {
    races.forEach((race) => (race.hidden = race.id !== state.race));
    links.forEach((link) => (link.hash === "#" + state.race ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
    for (const view of all("section.race:not([hidden]) section.view")) {
      view.hidden = view.dataset.view !== state.view;
      if (view.hidden) continue;
      all("[data-bits]", view).forEach((drawing) => (drawing.hidden = drawing.dataset.bits !== state.bits));
      const table = view.querySelector(".board");
      const rows = [...table.tBodies[0].rows];
      rows.forEach((row) => (row.hidden = !matches(row)));
      const shown = new Set(rows.filter((row) => !row.hidden).map((row) => row.dataset.entry));
      all(".point", view).forEach((point) => point.classList.toggle("out", !shown.has(point.dataset.entry)));
      view.querySelector(".none").hidden = shown.size > 0;
      sort(table);
      count.textContent = shown.size === rows.length ? `${rows.length} ${rows.length === 1 ? "entry" : "entries"}` : `${shown.size} of ${rows.length} entries`;
    }
    clear.hidden = ["q", "alphabet", "defense", "status", "pareto"].every((key) => !state[key]);
  };

  const change = (what) => {
    Object.assign(state, what);
    apply();
    remember();
  };

  for (const table of all(".board")) {
    [...table.tBodies[0].rows].forEach((row, i) => (row.dataset.place = i));
    for (const head of all("thead th", table)) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const [key, first] = [head.dataset.key, head.dataset.first];
        const other = first === "ascending" ? "descending" : "ascending";
        change({ sort: key, order: state.sort === key && state.order === first ? other : first });
      });
    }
  }

  const near = (event, on) => {
    const row = event.target.closest(".board tbody tr");
    if (!row) return;
    const points = all(".point", row.closest(".view")).filter((point) => point.dataset.entry === row.dataset.entry);
    points.forEach((point) => point.classList.toggle("near", on));
  };
  document.addEventListener("mouseover", (event) => near(event, true));
  document.addEventListener("mouseout", (event) => near(event, false));

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    const given = new FormData(form);
    change(Object.fromEntries(["view", "bits", "q", "alphabet", "defense", "status", "pareto"].map((key) => [key, given.get(key) ?? ""])));
  });
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    change({ q: "", alphabet: "", defense: "", status: "", pareto: "" });
    fill();
    form.elements.q.focus();
  });
  links.forEach((link) =>
    link.addEventListener("click", (event) => {
      event.preventDefault();
      change({ race: link.hash.slice(1) });
    }),
  );
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  });
  const restore = () => {
    const found = read();
    if (!found) return;
    state = found;
    fill();
    apply();
  };
  addEventListener("hashchange", restore);

  form.hidden = false;
  state = read() ?? state;
  fill();
  apply();
})();
