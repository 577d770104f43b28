// What the lessons need in JupyterLab beyond its settings. A prebuilt extension, written by hand: an object with `init`
// and `get`, as a bundler makes it.

// JupyterLab shows a file as it was when it was opened. `check` writes the start page again: read it again, too, when the
// learner comes back to it.
const renewStart = app => {
  app.shell.currentChanged?.connect((_, { newValue }) => {
    const context = newValue?.context;
    if (context?.path === 'START.md' && context.isReady && !context.model.dirty) {
      context.revert();
    }
  });
};

// When its kernel has ended, ipywidgets puts a broken chain at each part of a widget; in a lesson that is opened again
// it shows the widget so, or says "Error displaying widget". Say what to do instead.
const ended = '.jp-OutputArea-output > .jupyter-widgets-disconnected';
const lost = '.jp-OutputArea-output.jupyter-widgets:not(:has(*))';
const style = `
  :is(${ended}, ${lost})::before {
    content: "This answers no more, for its kernel has ended: run the cell again.";
    font: 13px/1.5 var(--jp-ui-font-family);
    color: var(--jp-content-font-color1);
    display: block;
    flex: 0 0 100%;
    box-sizing: border-box;
    border: 1px solid rgba(128, 128, 128, 0.45);
    border-left: 5px solid #d55e00;
    border-radius: 4px;
    padding: 4px 14px;
    margin: 2px 0 6px;
  }
  ${lost} { font-size: 0; }
  ${ended} .jupyter-widgets-disconnected::before { display: none; }
  ${ended} :is(button, select, .slider-container) { pointer-events: none; opacity: 0.5; }
  /* What is printed breaks between words, and within one only where it is longer than the cell. */
  .jp-OutputArea-output.jp-RenderedText pre { word-break: normal; overflow-wrap: anywhere; }
`;

const plugin = {
  id: 'tinyshard-lab:plugin',
  autoStart: true,
  activate: app => {
    document.head.append(Object.assign(document.createElement('style'), { textContent: style }));
    renewStart(app);
  }
};

(window._JUPYTERLAB ??= {})['tinyshard-lab'] = {
  init: () => {},
  get: async () => () => ({ __esModule: true, default: plugin })
};
