import { svelte } from '@sveltejs/vite-plugin-svelte';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';
import { scopeNames, withoutHydration } from './lean.js';
import { manifest } from './manifest.js';
import { notices } from './notices.js';

const root = fileURLToPath(new URL('.', import.meta.url));
const outDir = fileURLToPath(new URL('../unmask/explorer/static', import.meta.url));

export default defineConfig({
  root,
  plugins: [svelte({ compilerOptions: { cssHash: scopeNames(root) } }), withoutHydration(), notices(), manifest(root)],
  build: {
    outDir,
    emptyOutDir: true,
    target: 'es2022',
    // The page's content security policy allows files of its own server only: nothing inlined.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    rolldownOptions: {
      output: {
        entryFileNames: 'assets/[name]-[hash].js',
        chunkFileNames: 'assets/[name]-[hash].js',
        assetFileNames: 'assets/[name]-[hash][extname]',
      },
    },
  },
  test: { include: ['test/**/*.test.ts'] },
});
