"""`kingdom completion`: what makes a shell complete nouns, verbs, options and live ids."""

from typing import Annotated, Literal

import msgspec
import typer

from kingdom.cli.shared.command import storeless_command
from kingdom.cli.shared.json_result import one
from kingdom.cli.shared.output import CommandOutput

app = typer.Typer(add_completion=False)
# Each asks `kingdom --complete` what may stand under the cursor: a word, a tab and its meaning per line.
_BASH = r"""# Completion of kingdom for bash.
_kingdom() {
    local -a found=() words=()
    local word gap rest=$COMP_LINE prefix=""
    COMPREPLY=()
    # bash splits also at : and =, but what has no gap between is one word.
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        gap=${rest%%"$word"*}
        rest=${rest#*"$word"}
        if [[ ${#words[@]} -gt 0 && -n $word && -z $gap ]]; then
            prefix=${words[-1]}
            [[ $word == [:=]* ]] && prefix+=$word
            words[-1]+=$word
        else
            prefix=""
            words+=("$word")
        fi
    done
    mapfile -t found < <("$1" --complete "${words[@]:1}" 2>/dev/null)
    if [[ ${found[0]-} == :files ]]; then
        compopt -o default 2>/dev/null
    elif ((${#found[@]})); then
        found=("${found[@]%%$'\t'*}")
        # What stands in the store is text, never a part of a command.
        mapfile -t COMPREPLY < <(printf '%q\n' "${found[@]#"$prefix"}")
    fi
}
complete -F _kingdom kingdom
"""
_ZSH = r"""#compdef kingdom
# Completion of kingdom for zsh.
_kingdom() {
    local -a lines found
    lines=("${(@f)$("${words[1]}" --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ ${lines[1]} == :files ]]; then
        _files
        return
    fi
    local line
    for line in $lines; do
        # Without a meaning there is only the word.
        [[ -n $line ]] && found+=("${${line%%$'\t'*}//:/\\:}${${(M)line%%$'\t'*}/$'\t'/:}")
    done
    _describe kingdom found
}
# A fresh zsh has not begun to complete anything yet.
(( ${+functions[compdef]} )) || { autoload -Uz compinit && compinit }
compdef _kingdom kingdom
"""
_FISH = r"""# Completion of kingdom for fish.
function __kingdom_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found ($words[1] --complete $words[2..] 2>/dev/null)
    if test "$found[1]" = :files
        __fish_complete_path (commandline -ct)
    else
        printf '%s\n' $found
    end
end
complete -c kingdom -f -a '(__kingdom_complete)'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


class CompletionScript(msgspec.Struct, frozen=True, kw_only=True):
    """What a shell reads to complete the words of `kingdom`."""

    shell: str
    text: str


@storeless_command(app, "completion", result=one(CompletionScript))
async def completion(
    output: CommandOutput,
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print what makes a shell complete commands, options, and ids that are in the store right now.

    bash: add this line to ~/.bashrc: eval "$(kingdom completion bash)"

    zsh: add this line to ~/.zshrc: eval "$(kingdom completion zsh)"

    fish: kingdom completion fish > ~/.config/fish/completions/kingdom.fish

    Example: kingdom completion bash

    JSON: {shell, text}.
    """
    if output.json:
        output.document(CompletionScript(shell=shell, text=_SCRIPTS[shell]))
    else:
        typer.echo(_SCRIPTS[shell], nl=False)
