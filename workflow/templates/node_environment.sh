# Set up a node for the training: load the site's modules, then run its setup snippet.
#
# Arguments: a file descriptor, module_command.sh, the setup snippet, the modules. On the descriptor it writes each stage,
# so that an error can name its key, and in the end the environment; each item ends with NUL.
#   LOADEDMODULES   Modules before version 4 report success for a module that fails. A module listed under another name
#                   (an alias, a default version) is recognised because the list has changed.
#   unload          `module load` would skip a module that the user's shell had loaded, but its PYTHONPATH was removed.
#                   The last one first, as others may need the first.

ddp_ladder_descriptor=$1 ddp_ladder_module_command=$2 ddp_ladder_setup=$3
shift 3
ddp_ladder_modules=("$@")
set --
ddp_ladder_say() { printf '%s\0' "$1" >&"$ddp_ladder_descriptor"; }

# shellcheck source=workflow/templates/module_command.sh
. "$ddp_ladder_module_command"
if ((${#ddp_ladder_modules[@]})) && ! declare -F module >/dev/null; then
  ddp_ladder_say 'no module command'
  exit 1
fi
for ((ddp_ladder_k = ${#ddp_ladder_modules[@]} - 1; ddp_ladder_k >= 0; ddp_ladder_k--)); do
  if [[ :${LOADEDMODULES-}: == *:"${ddp_ladder_modules[ddp_ladder_k]}"[:/]* ]]; then
    module unload "${ddp_ladder_modules[ddp_ladder_k]}"
  fi
done
for ddp_ladder_module in "${ddp_ladder_modules[@]}"; do
  ddp_ladder_say "module $ddp_ladder_module"
  ddp_ladder_before=${LOADEDMODULES-}
  module load "$ddp_ladder_module" || exit 1
  if [[ ${LOADEDMODULES-} == "$ddp_ladder_before" && :${LOADEDMODULES-}: != *:"$ddp_ladder_module"[:/.-]* ]]; then
    exit 1
  fi
done

ddp_ladder_say setup
set -e
eval "$ddp_ladder_setup"$'\n\n:'
set +e
ddp_ladder_say environment
/usr/bin/env -0 >&"$ddp_ladder_descriptor"
