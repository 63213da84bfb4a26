import { vitePreprocess } from '@sveltejs/vite-plugin-svelte';

export default {
  preprocess: vitePreprocess(),
  // Names of scoped styles stand in the page twice and more; short ones make it smaller.
  compilerOptions: { cssHash: ({ hash, css }) => `_${hash(css).slice(0, 4)}` },
};
