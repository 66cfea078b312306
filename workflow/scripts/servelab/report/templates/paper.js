"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");

  // Theme: as the system, light, dark; remembered where the browser lets a file remember.
  const button = document.querySelector(".theme");
  const themes = ["auto", "light", "dark"];
  const remembered = () => { try { return localStorage.getItem("servelab.theme"); } catch { return null; } };
  const show = (theme) => {
    if (theme === "auto") delete root.dataset.theme; else root.dataset.theme = theme;
    button.textContent = `${button.dataset.label}: ${button.dataset[theme]}`;
    button.dataset.now = theme;
  };
  show(themes.includes(remembered()) ? remembered() : "auto");
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(button.dataset.now) + 1) % themes.length];
    show(next);
    try { localStorage.setItem("servelab.theme", next); } catch { /* a file may not remember: the choice lasts for the page */ }
  });

  // Vega lies in the page, compressed, and is unpacked when a figure is first pointed at.
  let vega;
  const unpacked = async () => {
    const bytes = Uint8Array.from(atob(document.getElementById("vega").textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    return window.vegaEmbed;
  };
  const wake = async (drawing) => {
    if (drawing.dataset.live) return;
    drawing.dataset.live = "1";
    vega = vega || unpacked();
    const embed = await vega;
    const spec = JSON.parse(drawing.querySelector(".spec").textContent);
    const stage = document.createElement("div");
    await embed(stage, spec, {
      ast: true, actions: false, renderer: "svg", defaultStyle: false,
      tooltip: { theme: "custom", disableDefaultStyle: true, styleId: "vg-none" },
    });
    const wide = drawing.querySelector(".wide");
    wide.replaceChildren(...stage.childNodes);
    wide.classList.add("vega-embed");
  };
  const drawings = document.querySelectorAll(".drawing");
  if (typeof DecompressionStream !== "undefined") {
    for (const drawing of drawings) {
      drawing.addEventListener("pointerenter", () => wake(drawing), { once: true });
    }
  }

  // Files of a figure are made from the drawing in the page, so that they are there when the page travels alone.
  const light = JSON.parse(document.getElementById("light").textContent);
  const drawn = (figure) => {
    const svg = figure.querySelector(".wide svg").cloneNode(true);
    const box = svg.getAttribute("viewBox").split(" ");
    svg.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    svg.setAttribute("width", box[2]);
    svg.setAttribute("height", box[3]);
    const text = new XMLSerializer().serializeToString(svg).replace(/var\(--([a-z]+)\)/g, (_, name) => light[name]);
    const at = text.indexOf(">") + 1;
    return { text: `${text.slice(0, at)}<rect width="100%" height="100%" fill="#ffffff"/>${text.slice(at)}`, width: +box[2], height: +box[3] };
  };
  const save = (url, name) => {
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    document.body.append(link);
    link.click();
    link.remove();
  };
  const asUrl = (text) => `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-as]");
    if (!link) return;
    event.preventDefault();
    const drawing = drawn(link.closest("figure"));
    const name = link.getAttribute("download");
    if (link.dataset.as === "svg") return save(asUrl(drawing.text), name);
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = 2 * drawing.width;
      canvas.height = 2 * drawing.height;
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      save(canvas.toDataURL("image/png"), name);
    };
    image.src = asUrl(drawing.text);
  });

  // What is folded is printed, except what only a screen can hold.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open]):not(.screen-only)")];
    for (const item of folded) item.open = true;
  });
  addEventListener("afterprint", () => { for (const item of folded) item.open = false; });
})();
