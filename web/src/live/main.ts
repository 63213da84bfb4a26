/** The script of a saved page that holds a model: opens the model, and answers for it as `window.unmaskLive`. */

import { type Arrays, decode } from '../api/binary';
import { type Answer, problem } from '../api/source';
import { type ModelMeta, PageEngine, refused } from './engine';
import type {} from '../api/saved';

/** What `as_text` of `unmask/explorer/export/live_model.py` wrote. */
function bytesOf(text: string): Uint8Array<ArrayBuffer> {
  const begin = text.indexOf(':') + 1;
  const bytes = new Uint8Array(((text.length - begin) / 11) * 9);
  for (let at = begin, to = 0; at < text.length; to += 9) {
    const limbs = [0, 0, 0];
    for (const end = at + 11; at < end; at++) {
      const code = text.charCodeAt(at);
      let carry = code - (code > 60 ? 33 : 32); // "<", 60, is not among the digits
      for (let limb = 2; limb >= 0; limb--) {
        carry += limbs[limb]! * 94;
        limbs[limb] = carry & 0xffffff;
        carry >>>= 24;
      }
    }
    limbs.forEach((limb, number) => {
      for (let byte = 0; byte < 3; byte++) bytes[to + 3 * number + byte] = limb >>> (16 - 8 * byte);
    });
  }
  return bytes.subarray(0, Number(text.slice(0, begin - 1)));
}

async function opened(element: HTMLElement): Promise<PageEngine> {
  const inflated = new Blob([bytesOf(element.textContent)]).stream().pipeThrough(new DecompressionStream('deflate'));
  element.remove(); // its text takes as much memory as the weights
  const model: Arrays<ModelMeta> = decode(await new Response(inflated).arrayBuffer());
  return PageEngine.of(model);
}

const element = document.getElementById('unmask-live');
if (element) {
  const engine = opened(element).catch((error: unknown) => {
    console.error(error);
    return null;
  });
  const get = async (path: string): Promise<Answer> => {
    const ready = await engine;
    const why = 'this browser cannot run the model of this page; open it in a newer browser';
    return ready ? ready.get(path) : refused(problem('NoEngine', why));
  };
  window.unmaskLive = { get };
}
