"use strict";
// Shows the values of one step in all charts: of the step below the pointer, or chosen with the arrow keys.

const charts = [...document.querySelectorAll("figure[data-points]")].map((figure) => ({
  svg: figure.querySelector("svg"),
  at: figure.querySelector(".at"),
  cursor: figure.querySelector(".cursor"),
  dots: [...figure.querySelectorAll(".dot")],
  texts: [...figure.querySelectorAll(".legend b")],
  points: JSON.parse(figure.dataset.points),
}));

const last = (chart) => chart.points.x.length - 1;

function nearest(chart, x) {
  let best = 0;
  chart.points.x.forEach((position, index) => {
    if (Math.abs(position - x) < Math.abs(chart.points.x[best] - x)) best = index;
  });
  return best;
}

function write(chart, index) {
  chart.at.textContent = chart.points.names[index];
  chart.texts.forEach((text, curve) => { text.textContent = chart.points.curves[curve].text[index]; });
}

function show(x) {
  for (const chart of charts) {
    const index = nearest(chart, x);
    const position = chart.points.x[index];
    write(chart, index);
    chart.cursor.setAttribute("d", `M${position} 14V190`);
    chart.dots.forEach((dot, curve) => {
      const y = chart.points.curves[curve].y[index];
      dot.setAttribute("visibility", y === null ? "hidden" : "visible");
      dot.setAttribute("cx", position);
      dot.setAttribute("cy", y ?? 0);
    });
  }
}

function rest() {
  for (const chart of charts) {
    write(chart, last(chart));
    chart.cursor.setAttribute("d", "");
    chart.dots.forEach((dot) => dot.setAttribute("visibility", "hidden"));
  }
}

for (const chart of charts) {
  let chosen = last(chart);
  const follow = (event) => {
    const box = chart.svg.getBoundingClientRect();
    chosen = nearest(chart, ((event.clientX - box.left) / box.width) * 460);
    show(chart.points.x[chosen]);
  };
  chart.svg.addEventListener("pointermove", follow);
  chart.svg.addEventListener("pointerdown", follow);
  chart.svg.addEventListener("pointerleave", rest);
  chart.svg.addEventListener("blur", rest);
  chart.svg.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: last(chart) };
    if (!(event.key in moves)) return;
    event.preventDefault();
    chosen = Math.min(Math.max(moves[event.key], 0), last(chart));
    show(chart.points.x[chosen]);
  });
}
