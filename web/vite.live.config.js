import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';

/** The script of a saved page that holds a model: one file, which is written into the page beside the model. */
export default defineConfig({
  root: fileURLToPath(new URL('.', import.meta.url)),
  build: {
    outDir: fileURLToPath(new URL('../unmask/explorer/live', import.meta.url)),
    emptyOutDir: false,
    target: 'es2022',
    modulePreload: { polyfill: false },
    rolldownOptions: {
      input: fileURLToPath(new URL('src/live/main.ts', import.meta.url)),
      output: { entryFileNames: 'live.js', format: 'es' },
    },
  },
});
