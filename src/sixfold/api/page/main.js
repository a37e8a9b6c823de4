// The page: which view is shown, the theme, the key, and in one word how the server is.

import { Anatomy } from "./anatomy.js";
import { Chat } from "./chat.js";
import { forgetColours, keep, kept, say, sentence } from "./dom.js";
import { Feed } from "./feed.js";
import { Health } from "./health.js";
import { getKey, onKeyNeeded, setKey } from "./server.js";

const feed = new Feed();
const views = {
  chat: new Chat(document.getElementById("chat"), showState),
  anatomy: new Anatomy(document.getElementById("anatomy"), feed),
  health: new Health(document.getElementById("health"), feed),
};
let shown = "";

// ---- views ----------------------------------------------------------------------------------------------------------

function route() {
  const [name, rest = ""] = location.hash.slice(1).split("/", 2);
  if (name === "main") return;
  const wanted = Object.hasOwn(views, name) ? name : "chat";
  if (wanted !== shown) {
    for (const [other, view] of Object.entries(views)) {
      document.getElementById(other).hidden = other !== wanted;
      if (other !== wanted) view.hide();
    }
    for (const link of document.querySelectorAll("[data-view]")) {
      if (link.dataset.view === wanted) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    shown = wanted;
    document.title = `Sixfold: ${wanted}`;
  }
  watch();
  views[wanted].show(decoded(rest));
}

/** A part of the address, which anybody may have written. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The feed is wanted while a view that shows it can be seen. */
function watch() {
  feed.want(shown !== "chat" && !document.hidden);
}

addEventListener("hashchange", route);
document.addEventListener("visibilitychange", watch);

// ---- state ----------------------------------------------------------------------------------------------------------

const state = document.getElementById("state");

function showState(word, kind, title = "") {
  say(state, word);
  state.dataset.kind = kind;
  state.title = title;
}

const WORDS = {
  ready: ["ready", "good"],
  starting: ["starting", "wait"],
  restarting: ["engine restarts", "wait"],
  draining: ["shutting down", "wait"],
  dead: ["engine gone", "bad"],
};

function showFeed() {
  if (feed.connection === "closed") return;
  if (feed.connection === "open") {
    showState(...(WORDS[feed.frame.state] ?? [feed.frame.state, "wait"]));
  } else if (feed.connection === "lost") {
    showState("connection lost", "bad", feed.problem);
  } else if (feed.connection === "refused") {
    showState("needs another key", "bad", feed.problem);
  } else {
    showState("connecting", "wait");
  }
}

feed.listen((frame) => frame === null && showFeed());
setInterval(showFeed, 250);

// ---- theme ----------------------------------------------------------------------------------------------------------

const THEMES = { system: "light dark", light: "light", dark: "dark" };
let themeNow = "system";
const themeButton = document.getElementById("theme");

function setTheme(theme) {
  document.documentElement.style.colorScheme = THEMES[theme];
  say(themeButton, `Theme: ${theme}`);
  themeNow = theme;
  keep("sixfold.theme", theme);
  forgetColours();
}

themeButton.addEventListener("click", () => {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(themeNow) + 1) % names.length]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", forgetColours);
setTheme(Object.hasOwn(THEMES, kept("sixfold.theme")) ? kept("sixfold.theme") : "system");

// ---- key ------------------------------------------------------------------------------------------------------------

const dialog = document.getElementById("key-dialog");
const input = document.getElementById("key-input");
const forget = document.getElementById("key-forget");
const PLACE_OF_KEY = "It is kept in this tab only, and forgotten when the tab is closed.";
const HELP = {
  missing_api_key: `Whoever runs it gives you one. ${PLACE_OF_KEY}`,
  invalid_api_key: "Perhaps not all of it was copied.",
  admin_only: "It shows what others do. Cancel leads back to the chat.",
};
let waiting = [];
let leads = false; // from a view that this key does not open, back to the chat

function open(title, why) {
  say(document.getElementById("key-title"), title);
  say(document.getElementById("key-why"), why);
  forget.hidden = !getKey();
  if (!dialog.open) dialog.showModal();
}

/** Ask for a key. Those who ask at the same time share one answer; who was refused with an older key than the one that
 *  is there now just tries again. */
function ask(error, sent) {
  if (sent !== getKey()) return Promise.resolve(true);
  leads = error.code === "admin_only";
  open("A key is needed", `${sentence(error.message)} ${HELP[error.code] ?? ""}`);
  return new Promise((resolve) => waiting.push(resolve));
}

function answer(given) {
  dialog.close();
  input.value = "";
  const asked = waiting;
  waiting = [];
  for (const resolve of asked) resolve(given);
  if (given) {
    feed.retry();
    views[shown].show("");
  } else if (leads) {
    location.hash = "#chat";
  }
  leads = false;
}

document.getElementById("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = input.value.trim();
  if (/^[!-~]+$/.test(key)) {
    setKey(key);
    answer(true);
  } else {
    say(document.getElementById("key-why"), "This is no key: one has letters, digits and signs of ASCII, and no blanks.");
    input.select();
  }
});
document.getElementById("key-cancel").addEventListener("click", () => answer(false));
forget.addEventListener("click", () => {
  setKey("");
  answer(false);
});
dialog.addEventListener("cancel", () => answer(false));
document.getElementById("key-button").addEventListener("click", () => {
  open("Your key", PLACE_OF_KEY);
});
onKeyNeeded(ask);

route();
