import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** Files and folders of web/ that decide what the build holds; a test in Python has the same list. */
const SOURCES = [
  'index.html',
  'lean.js',
  'manifest.js',
  'notices.js',
  'package-lock.json',
  'package.json',
  'src',
  'svelte.config.js',
  'tsconfig.json',
  'vite.config.js',
];

/** Paths of all files under `start`, relative to `root`, with forward slashes. */
function filesUnder(root, start) {
  const path = join(root, start);
  return readdirSync(path, { withFileTypes: true }).flatMap((entry) => {
    const name = `${start}/${entry.name}`;
    return entry.isDirectory() ? filesUnder(root, name) : [name];
  });
}

/** SHA-256 over path, NUL, content with LF line ends, of every source in the order of its path. */
function sourceHash(root) {
  const paths = SOURCES.flatMap((name) => (name === 'src' ? filesUnder(root, name) : [name]));
  const hash = createHash('sha256');
  for (const path of paths.sort()) {
    const content = readFileSync(join(root, path), 'utf8').replaceAll('\r\n', '\n');
    hash.update(path).update('\0').update(content);
  }
  return hash.digest('hex');
}

/** Writes manifest.json beside the build: which sources it was made from. */
export function manifest(root) {
  return {
    name: 'unmask-manifest',
    writeBundle(options) {
      const content = JSON.stringify({ sources_sha256: sourceHash(root) }, null, 2);
      writeFileSync(join(options.dir, 'manifest.json'), `${content}\n`);
    },
  };
}
