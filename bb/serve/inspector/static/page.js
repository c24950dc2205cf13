// The page: the list of runs, or one of them, as its address says.

import { showList } from "./list.js";
import { showRun } from "./run.js";

const main = document.getElementById("main");
const id = location.pathname.replace(/\/$/, "").match(/\/runs\/([^/]+)$/)?.[1];
main.replaceChildren();
if (id === undefined) showList(main);
else showRun(main, decodeURIComponent(id));
