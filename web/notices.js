import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** The folder of the package that a module comes from, or null for a module of our own. */
function packageOf(module) {
  return /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+(?=\/)/.exec(module.replaceAll('\\', '/').replace('\0', ''))?.[0] ?? null;
}

/** Name, version, licence and the licence's text of a package. */
function notice(folder) {
  const { name, version, license } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'));
  const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
  if (!file) throw new Error(`${name} has no licence file, and parts of it are in the page`);
  return `${name} ${version} (${license})\n\n${readFileSync(join(folder, file), 'utf8').trim()}\n`;
}

/** Writes LICENSES.txt beside the build: the licence of every package of which a module is in the page. */
export function notices() {
  return {
    name: 'unmask-notices',
    generateBundle(_, bundle) {
      const modules = Object.values(bundle).flatMap((part) => Object.keys(part.modules ?? {}));
      const folders = [...new Set(modules.map(packageOf).filter((folder) => folder !== null))].sort();
      const source = ['The page of the explorer contains parts of these packages.\n', ...folders.map(notice)];
      this.emitFile({ type: 'asset', fileName: 'LICENSES.txt', source: source.join(`\n${'-'.repeat(80)}\n\n`) });
    },
  };
}
