"""A stub of the vendors' model APIs. The real coding agents then work offline and follow a script.

The prompt contains the script, in the language of the scripted agent (`soldiers.agents.scripted.script`). Every request
contains the whole conversation, which shows the executed steps. Therefore many agents can share one stub, and a resumed
session continues where it was. The stub has a memory only for `first_time_only` and `times`.

step                                        becomes
say, stream, answer                         text; several in a row are one response
write                                       the tool that writes files, else the shell
append, run, wait_for                       the shell
petition, ask, result, remember             the tools petition, ask_human, report_result, remember of server `kingdom`
{"call": tool, "args": {...}}               any tool, by the name under which it is offered
cost                                        usage with about this cost in the vendor's price table (see prices.py)
{"usage": {"input_tokens": 1, ...}}         this usage
fail                                        an error 400 with the text as its message
{"model_error": 529, "times": 2}            an error, this many times or always; also retry_after, message, headers
{"drop_stream": true, "times": 1}           a stream that breaks off; a response without streaming is complete
{"delay": 0.5}                              a delayed response
hang                                        a stream that stalls after its text; with "deaf" the shell stops the agent
                                            with SIGSTOP
crash                                       the shell kills the agent with SIGKILL; the code cannot be chosen
report                                      the text that answers the next prompt without a script

A prompt without a script continues the last script. In the texts of that script, `{reply}` stands for this prompt, or
only for its part after `reply:` if it has one. While a question waits for a reply, a prompt that begins with "go on" or
"continue" is not a reply, and the question is asked again. A prompt that begins with one of these words and repeats an
unfinished script continues the script.
"""
