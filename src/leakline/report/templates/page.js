(function () {
  "use strict";
  function all(what, inside) { return Array.from((inside || document).querySelectorAll(what)); }

  function sortable(table) {
    var heads = table.tHead ? Array.from(table.tHead.rows[0].cells) : [];
    if (!table.tBodies[0] || table.tBodies[0].rows.length < 2) { return; }
    heads.forEach(function (head, column) {
      var button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.textContent = "";
      head.appendChild(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", function () {
        var up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach(function (other) { other.setAttribute("aria-sort", "none"); });
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        var rows = Array.from(table.tBodies[0].rows);
        rows.sort(function (a, b) {
          var x = a.cells[column].dataset.key, y = b.cells[column].dataset.key;
          if (!x || !y) { return !x && !y ? 0 : !x ? 1 : -1; } // what was not measured comes last, up or down
          var p = Number(x), q = Number(y);
          var order = isNaN(p) || isNaN(q) ? x.localeCompare(y, undefined, { numeric: true }) : p - q;
          return up ? order : -order;
        });
        rows.forEach(function (row) { table.tBodies[0].appendChild(row); });
      });
    });
  }
  all("table.data").forEach(sortable);

  var form = document.getElementById("filters"), boxes = form ? all("input[type=checkbox]", form) : [];
  var known = {};
  boxes.forEach(function (box) { (known[box.name] = known[box.name] || new Set()).add(box.value); });
  function chosen() {
    var found = {};
    boxes.forEach(function (box) {
      found[box.name] = found[box.name] || new Set();
      if (box.checked) { found[box.name].add(box.value); }
    });
    return found;
  }
  function allowed(where, wanted) {
    return Object.keys(where).every(function (name) { return !wanted[name] || wanted[name].has(where[name]); });
  }
  function filter() {
    var wanted = chosen(), rows = 0, every = 0;
    all("[data-where]").forEach(function (element) {
      var wheres = JSON.parse(element.dataset.where);
      var shown = !wheres.length || wheres.some(function (where) { return allowed(where, wanted); });
      element.classList.toggle("out", !shown);
    });
    all("table.data").forEach(function (table) {
      var heads = Array.from(table.tHead.rows[0].cells);
      heads.forEach(function (head, column) {
        if (!head.dataset.defence || !wanted.defence) { return; }
        var shown = wanted.defence.has(head.dataset.defence);
        all("tr", table).forEach(function (row) { row.cells[column].classList.toggle("out", !shown); });
      });
      all("tbody tr", table).forEach(function (row) {
        var shown = heads.every(function (head, column) {
          var name = head.dataset.filter;
          // A paper's rows may have values that were not run: they go only when something is left out. Utility is no
          // attack: its rows stay whatever attacks are chosen.
          return !name || !wanted[name] || wanted[name].size === known[name].size || row.cells[column].dataset.key === "utility" && name === "attack" || wanted[name].has(row.cells[column].dataset.key);
        });
        row.classList.toggle("out", !shown);
        rows += shown ? 1 : 0;
        every += 1;
      });
    });
    var active = boxes.some(function (box) { return !box.checked; });
    form.classList.toggle("active", active);
    document.getElementById("shown-count").textContent = active ? rows + " of " + every + " table rows shown" : "";
    redraw();
  }
  if (form) {
    form.hidden = false;
    boxes.forEach(function (box) { box.checked = true; box.addEventListener("change", filter); });
    document.getElementById("show-all").addEventListener("click", function () {
      boxes.forEach(function (box) { box.checked = true; });
      filter();
    });
    form.addEventListener("submit", function (event) { event.preventDefault(); });
  }

  var slider = document.getElementById("slider");
  if (slider) {
    var range = document.getElementById("noise"), every = document.getElementById("every-noise");
    var levels = JSON.parse(range.dataset.levels);
    var slide = function () {
      var level = levels[Number(range.value)];
      document.getElementById("noise-shown").textContent = every.checked ? "all levels" : String(level);
      range.setAttribute("aria-valuetext", "noise " + level);
      all(".strip").forEach(function (strip) {
        var pictures = all("[data-noise]", strip), mine = pictures.map(function (p) { return Number(p.dataset.noise); });
        var below = mine.filter(function (one) { return one <= level; });
        var shown = below.length ? Math.max.apply(null, below) : Math.min.apply(null, mine);
        pictures.forEach(function (picture, i) { picture.classList.toggle("off", !every.checked && mine[i] !== shown); });
      });
    };
    slider.hidden = false;
    range.addEventListener("input", slide);
    every.addEventListener("change", slide);
    slide();
  }

  var source = document.getElementById("figures"), held = document.getElementById("plotly");
  var figures = {}, drawings = source && held ? all(".live") : [];
  function library() {
    // The largest part of the page is run when the first chart comes near, so that the text opens at once.
    if (!held) { return; }
    var script = document.createElement("script");
    script.textContent = held.textContent;
    held = null;
    figures = JSON.parse(source.textContent);
    document.body.appendChild(script);
  }
  function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim(); }
  function faint(hex) {
    return "rgba(" + [1, 3, 5].map(function (i) { return parseInt(hex.slice(i, i + 2), 16); }).join(",") + ",0.18)";
  }
  function thinned(trace, wanted) {
    var where = trace.meta.where;
    if (!where || !where.length) {
      // A paper's figure says no more than its lines' names, which may be those of defences.
      return known.defence && known.defence.has(trace.name) && !wanted.defence.has(trace.name) ? null : trace;
    }
    if (where.length === 1 && trace.x.length !== 1) { return allowed(where[0], wanted) ? trace : null; }
    var keep = where.map(function (one) { return allowed(one, wanted); });
    if (keep.indexOf(true) < 0) { return null; }
    function pick(values) { return values.filter(function (_, i) { return keep[i]; }); }
    ["x", "y", "text", "hovertext", "textposition"].forEach(function (part) { if (Array.isArray(trace[part])) { trace[part] = pick(trace[part]); } });
    ["error_x", "error_y"].forEach(function (part) {
      if (trace[part]) { trace[part].array = pick(trace[part].array); trace[part].arrayminus = pick(trace[part].arrayminus); }
    });
    return trace;
  }
  function dressed(figure) {
    var copy = JSON.parse(JSON.stringify(figure)), wanted = chosen();
    copy.data = copy.data.map(function (trace) { return thinned(trace, wanted); }).filter(Boolean);
    copy.layout.font.color = colour("ink");
    copy.layout.hoverlabel = { bgcolor: colour("paper"), bordercolor: colour("axis"), font: { color: colour("ink") }, namelength: 40 };
    ["xaxis", "yaxis"].forEach(function (axis) {
      copy.layout[axis].gridcolor = colour("line");
      copy.layout[axis].linecolor = colour("axis");
      copy.layout[axis].tickcolor = colour("axis");
      copy.layout[axis].automargin = true;
    });
    (copy.layout.shapes || []).forEach(function (shape) { shape.line.color = colour("axis"); });
    copy.data.forEach(function (trace) {
      var mine = colour("s" + trace.meta.style);
      ["line", "marker", "error_x", "error_y"].forEach(function (part) { if (trace[part]) { trace[part].color = mine; } });
      if (trace.meta.band) { trace.fillcolor = faint(mine); }
    });
    return copy;
  }
  function draw(box) {
    library();
    if (!window.Plotly) { return; }
    var made = dressed(figures[box.dataset.figure]);
    box.parentNode.classList.add("on");
    box.dataset.drawn = "yes";
    Plotly.react(box, made.data, made.layout, { displayModeBar: false, responsive: true, doubleClick: "reset" }).then(function () {
      // Cards grow when their neighbours go, and no window was resized.
      if (box.offsetParent) { Plotly.Plots.resize(box); }
    }).catch(function () { box.parentNode.classList.remove("on"); });
  }
  function redraw() {
    drawings.forEach(function (box) {
      if (box.dataset.drawn && box.offsetParent) { draw(box); } else { delete box.dataset.drawn; }
    });
  }
  if (!drawings.length) { return; }
  // Charts are drawn when they come near the screen, so that a long report opens at once.
  var seen = new IntersectionObserver(function (entries) {
    entries.forEach(function (entry) {
      var box = entry.target.querySelector(".live");
      if (entry.isIntersecting && !box.dataset.drawn) { draw(box); }
    });
  }, { rootMargin: "600px" });
  drawings.forEach(function (box) { seen.observe(box.parentNode); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
})();
