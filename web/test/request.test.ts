import { describe, expect, it } from 'vitest';
import { pathOf } from '../src/api/request';
import * as requests from '../src/api/requests';
import spelling from './spelling.json?raw';

type Case = Parameters<typeof pathOf>[0] & { given: Parameters<typeof pathOf>[1]; spelled: string };

describe('requests', () => {
  it.each(JSON.parse(spelling) as Case[])('spells $spelled as Python does', ({ given, spelled, ...declared }) => {
    expect(pathOf(declared, given)).toBe(spelled);
  });

  it('puts defaults where nothing is given, and keeps 0', () => {
    expect(requests.fill({ text: 'a', token: 0 }).path).toBe('texts/a/fill?token=0&top=8');
    expect(requests.fill({ text: 'a', token: 1, top: 3 }).path).toBe('texts/a/fill?token=1&top=3');
    expect(requests.sinks({ text: 'a', epsilon: 0 }).path).toBe('texts/a/sinks?epsilon=0');
  });

  it('says how an answer comes', () => {
    expect(requests.heads({ text: 'a' })).toEqual({ path: 'texts/a/heads', binary: true, grows: true });
    expect(requests.session()).toEqual({ path: 'session', binary: false, grows: false });
  });
});
