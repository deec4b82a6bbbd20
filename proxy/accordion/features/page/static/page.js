// Shows times in the reader's zone and language, and keeps an open page up to date: on an event of the server, loads the
// page again and replaces its live parts. Without this script the page is the same, with times in UTC, but for what
// happens after it was loaded.
"use strict";

const address = document.body.dataset.events;
const status = document.getElementById("live");
const pause = Number(document.body.dataset.pause) || 2000;
let isLoading = false;
let isDue = false;

const timeForms = {
  moment: new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" }),
  clock: new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "numeric", minute: "2-digit", second: "2-digit" }),
};

function showLocalTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (!at.getTime()) continue;
    if (element.title) element.title = timeForms.moment.format(at);
    const form = timeForms[element.dataset.form];
    if (form) element.textContent = form.format(at);
  }
  const zone = root.getElementById("zone");
  if (zone) zone.textContent = timeForms.moment.resolvedOptions().timeZone;
}

showLocalTimes(document);

function replaceLiveParts(text) {
  const page = new DOMParser().parseFromString(text, "text/html");
  showLocalTimes(page);
  for (const part of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(part.id);
    if (fresh && fresh.innerHTML !== part.innerHTML && !part.contains(document.activeElement)) {
      part.replaceChildren(...fresh.childNodes);
    }
  }
  for (const list of document.querySelectorAll("[data-rows]")) addRows(list, page.getElementById(list.id));
}

// Adds the rows that a list does not have yet at its beginning, or at its end. Rows that were loaded before stay.
function addRows(list, fresh, atEnd = false) {
  const rows = [...(fresh ? fresh.children : [])].filter((row) => !document.getElementById(row.id));
  if (atEnd) list.append(...rows);
  else list.prepend(...rows);
}

// Loads the rows behind a link to older ones when a person has scrolled to it. So many rows fit a page that stays quick;
// behind them, the link leads to a page of its own.
const MOST_ROWS = 500;

async function loadMore(link) {
  const list = document.getElementById(link.dataset.more);
  const response = await fetch(link.href, { headers: { accept: "text/html" } }).catch(() => null);
  if (!response || !response.ok || response.redirected) return;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  showLocalTimes(page);
  addRows(list, page.getElementById(list.id), true);
  const next = page.querySelector(`a[data-more="${list.id}"]`);
  if (!next) link.parentElement.remove();
  else link.setAttribute("href", next.getAttribute("href"));
  if (next && list.children.length < MOST_ROWS) whenReached.observe(link);
}

const whenReached = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    whenReached.unobserve(target);
    loadMore(target);
  }
}, { rootMargin: "200px" });
for (const link of document.querySelectorAll("a[data-more]")) whenReached.observe(link);

async function reload() {
  isDue = true;
  if (isLoading || document.hidden) return;
  isLoading = true;
  while (isDue && !document.hidden) {
    isDue = false;
    const response = await fetch(location.href, { headers: { accept: "text/html" } }).catch(() => null);
    if (response && response.ok && !response.redirected) replaceLiveParts(await response.text());
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
  isLoading = false;
}

function show(text) {
  status.hidden = false;
  status.textContent = text;
  status.dataset.state = text;
}

// Only the browser knows the address under which a reverse proxy shows this page.
for (const place of document.querySelectorAll("[data-address]")) {
  place.textContent = new URL(place.dataset.address, location.href).href.replace(/\/$/, "");
}

if (address) {
  const session = new URL(address, location.href).searchParams.get("session");
  const events = new EventSource(address.split("?")[0]);
  events.addEventListener("open", () => show("live"));
  events.addEventListener("error", () => show("not connected"));
  events.addEventListener("tick", reload);
  events.addEventListener("change", (event) => {
    if (!session || JSON.parse(event.data).sessions.includes(session)) reload();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && isDue) reload();
  });
  window.addEventListener("pagehide", () => events.close());
}
