// Browsers start no worker from a file. If the site is opened from a disk, its search runs in a frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      // In the frame, `postMessage` answers the page, as in a worker.
      frame.srcdoc =
        "<script>postMessage = data => frameElement.dispatchEvent(new CustomEvent('answer', {detail: data}))</script>" +
        `<script src="${url}"></script>`;
      frame.addEventListener("answer", ({ detail }) =>
        this.dispatchEvent(new MessageEvent("message", { data: detail })),
      );
      this.window = new Promise((resolve) =>
        frame.addEventListener("load", () => resolve(frame.contentWindow)),
      );
      document.body.append(frame);
    }
    async postMessage(data) {
      const window = await this.window;
      window.dispatchEvent(new window.MessageEvent("message", { data }));
    }
  };
}
