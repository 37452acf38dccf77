"""`kingdom completion`: scripts that make a shell complete nouns, verbs, options and ids."""

from typing import Annotated, Literal

import typer

from kingdom.cli.framework.command import storeless_command
from kingdom.cli.framework.json_result import one
from kingdom.cli.framework.output import CommandOutput
from kingdom.views.setup import CompletionScript

app = typer.Typer(add_completion=False)
# Each script calls `kingdom --complete`, which prints a candidate, a tab and its meaning per line.
_BASH = r"""# Completion of kingdom for bash.
_kingdom() {
    local -a found=() words=()
    local word gap rest=$COMP_LINE prefix=""
    COMPREPLY=()
    # bash also splits words at : and =, so parts without a space between them are joined again.
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
        # Text from the store is quoted, so that it never becomes a command.
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
        # A line without a tab has only the word, and no meaning.
        [[ -n $line ]] && found+=("${${line%%$'\t'*}//:/\\:}${${(M)line%%$'\t'*}/$'\t'/:}")
    done
    _describe kingdom found
}
# In a fresh zsh completion is not initialized yet.
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


@storeless_command(app, "completion", result=one(CompletionScript))
async def completion(
    output: CommandOutput,
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script that makes a shell complete commands, options, and ids from the store.

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
