// The site's search runs in a worker, which browsers do not start for pages that are files. There an empty frame runs
// the same script, and passes messages on: as copies, since each side changes its own. (Zensical would load such a
// script from another machine.)
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.onmessage?.({ data: structuredClone(data) });
      this.ready = new Promise((resolve) => {
        const script = inside.document.createElement("script");
        script.src = new URL(url, location).href;
        script.onload = () => resolve(inside);
        inside.document.body.append(script);
      });
    }

    postMessage(data) {
      const copy = structuredClone(data);
      this.ready.then((inside) => inside.onmessage({ data: copy }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
