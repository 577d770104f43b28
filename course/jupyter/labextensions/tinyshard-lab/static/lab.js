// What the lessons need in JupyterLab beyond its settings. A prebuilt extension, written by hand: an object with `init`
// and `get`, as a bundler makes it.

// JupyterLab shows a file as it was when it was opened. `check` writes the start page again: read it again, too, when the
// learner comes back to it.
const renewStart = app => {
  app.shell.currentChanged?.connect((_, { newValue }) => {
    const context = newValue?.context;
    if (context?.path.split('/').pop() === 'START.md' && context.isReady && !context.model.dirty) {
      context.revert();
    }
  });
};

// In a narrow window the list of files would leave a lesson half the width; the start page has the lessons too.
const NARROW_PX = 1100;
const giveRoom = app => {
  app.restored.then(() => {
    if (window.innerWidth < NARROW_PX) {
      app.shell.collapseLeft?.();
    }
  });
};

// The colours of a traceback, with a contrast of 4.5 and more on the grounds of output and of errors, in both themes.
const inks = {
  light: { red: '#b3261e', green: '#006b2b', yellow: '#755000', blue: '#0b57c2', magenta: '#8a2a86', cyan: '#00636b', keyword: '#006b00' },
  dark: { red: '#ff938e', green: '#5fd38d', yellow: '#e6c34a', blue: '#8ab8ff', magenta: '#e3a0e0', cyan: '#7fd8da', keyword: '#6fd66f' }
};
const spans = { keyword: '[style*="rgb(0,135,0)"]' };
for (const name of ['red', 'green', 'yellow', 'blue', 'magenta', 'cyan']) {
  spans[name] = `.ansi-${name}-fg`;
}

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
  /* The start page's table begins where its text does. */
  .jp-MarkdownViewer .jp-RenderedMarkdown table { margin-left: 0; }
  /* Figures have a grey that is legible on both grounds: here it is nearer to the ink of the page. */
  [data-jp-theme-light="true"] .jp-RenderedImage img { filter: brightness(0.85); }
  [data-jp-theme-light="false"] .jp-RenderedImage img { filter: brightness(1.2); }
${Object.entries(inks).map(([theme, colours]) => Object.entries(colours).map(([name, colour]) =>
  `  [data-jp-theme-light="${theme === 'light'}"] .jp-RenderedText ${spans[name]} { color: ${colour} !important; }`
).join('\n')).join('\n')}
`;

const plugin = {
  id: 'tinyshard-lab:plugin',
  autoStart: true,
  activate: app => {
    document.head.append(Object.assign(document.createElement('style'), { textContent: style }));
    renewStart(app);
    giveRoom(app);
  }
};

(window._JUPYTERLAB ??= {})['tinyshard-lab'] = {
  init: () => {},
  get: async () => () => ({ __esModule: true, default: plugin })
};
