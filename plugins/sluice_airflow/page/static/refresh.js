// Repeats a question while the page is looked at; one at a time.

export function every(seconds, ask) {
  const control = new AbortController();
  let timer = null;
  async function once() {
    clearTimeout(timer);
    if (!document.hidden) await ask(control.signal);
    if (!control.signal.aborted) timer = setTimeout(once, seconds * 1000);
  }
  const seen = () => document.hidden || once();
  document.addEventListener("visibilitychange", seen);
  once();
  return () => {
    control.abort();
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", seen);
  };
}
