/** The launch's token: taken out of the address at once, kept for this tab only. */

const KEY = 'unmask-token';

/** The token in the address or, after a reload, the one kept before; null if there is neither. */
export function takeToken(): string | null {
  const address = new URL(location.href);
  const given = address.searchParams.get('token');
  if (given !== null) {
    sessionStorage.setItem(KEY, given);
    address.searchParams.delete('token');
    history.replaceState(history.state, '', address);
  }
  return sessionStorage.getItem(KEY);
}
