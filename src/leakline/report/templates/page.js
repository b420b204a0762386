(function () {
  "use strict";
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
          var p = parseFloat(x), q = parseFloat(y);
          var order = isNaN(p) || isNaN(q) ? x.localeCompare(y, undefined, { numeric: true }) : p - q;
          return up ? order : -order;
        });
        rows.forEach(function (row) { table.tBodies[0].appendChild(row); });
      });
    });
  }
  document.querySelectorAll("table.data").forEach(sortable);

  var source = document.getElementById("figures");
  if (!source || !window.Plotly) { return; }
  var figures = JSON.parse(source.textContent);
  function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim(); }
  function faint(hex) {
    return "rgba(" + [1, 3, 5].map(function (i) { return parseInt(hex.slice(i, i + 2), 16); }).join(",") + ",0.18)";
  }
  function dressed(figure) {
    var copy = JSON.parse(JSON.stringify(figure));
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
    var made = dressed(figures[box.dataset.figure]);
    box.parentNode.classList.add("on");
    Plotly.react(box, made.data, made.layout, { displayModeBar: false, responsive: true, doubleClick: "reset" }).catch(function () {
      box.parentNode.classList.remove("on");
    });
    box.dataset.drawn = "yes";
  }
  var boxes = Array.from(document.querySelectorAll(".live"));
  // Charts are drawn when they come near the screen, so that a long report opens at once.
  var seen = new IntersectionObserver(function (entries) {
    entries.forEach(function (entry) {
      if (entry.isIntersecting) {
        seen.unobserve(entry.target);
        draw(entry.target.querySelector(".live"));
      }
    });
  }, { rootMargin: "600px" });
  boxes.forEach(function (box) { seen.observe(box.parentNode); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () {
    boxes.forEach(function (box) { if (box.dataset.drawn) { draw(box); } });
  });
})();
