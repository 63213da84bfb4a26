/** The launch's token: taken out of the address at once, kept for this tab only. */

const KEY = 'unmask-token';
const LOOPBACK = ['127.0.0.1', 'localhost', '[::1]'];

/** What opens a locked page: a token of this server, or the address of another one. */
export interface Key {
  token: string;
  /** The state behind `#` of the address that was pasted, or empty. */
  hash: string;
  /** The address itself where another port answers it. */
  elsewhere: string | null;
}

/** The token in the address or, after a reload, the one kept before; null if there is neither. */
export function takeToken(): string | null {
  const address = new URL(location.href);
  const given = address.searchParams.get('token');
  if (given !== null) {
    keepToken(given);
    address.searchParams.delete('token');
    history.replaceState(history.state, '', address);
  }
  return sessionStorage.getItem(KEY);
}

/** Keeps a token for the reloads of this tab. */
export function keepToken(token: string): void {
  sessionStorage.setItem(KEY, token);
}

/** The address of a page with its token, so that any tab of this machine opens it. */
export function withToken(href: string, token: string): string {
  const address = new URL(href);
  address.searchParams.set('token', token);
  return address.href;
}

/** An address, with the state of this page where it has none of its own. */
export function withHash(href: string, hash: string): string {
  const address = new URL(href);
  if (address.hash.length < 2) address.hash = hash;
  return address.href;
}

/** What was pasted, as a key; a sentence where it is none. */
export function keyIn(pasted: string, origin: string): Key | string {
  const given = pasted.trim();
  if (/^[\w-]+$/.test(given)) return { token: given, hash: '', elsewhere: null };
  if (!URL.canParse(given)) return 'this is neither an address nor a token; copy the address that "unmask explore" printed';
  const address = new URL(given);
  // Only the explorer of this machine is opened from here, whatever was pasted.
  if (address.protocol !== 'http:' || !LOOPBACK.includes(address.hostname)) {
    return `${address.host || address.protocol} is not the explorer of this machine; copy the address that "unmask explore" printed`;
  }
  const token = address.searchParams.get('token') ?? '';
  if (token === '') return 'this address has no token; copy the one that "unmask explore" printed, with all that is behind "token="';
  return { token, hash: address.hash, elsewhere: address.origin === origin ? null : address.href };
}
