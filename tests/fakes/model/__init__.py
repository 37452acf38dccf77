"""A stub of the vendors' model APIs, so that the real coding agents work offline and do as a script says.

The script travels in the prompt, in the language of the scripted agent (`soldiers.agents.scripted.script`), and the
conversation that comes with every request tells which of its steps are done: fifty agents can share one stub, and
a session that is resumed continues where it was. Only `first_time_only` and `times` need memory.

step                                        becomes
say, stream, answer                         text; several in a row are one response
write                                       the tool that writes files, else the shell
append, run, wait_for                       the shell
petition, ask, result, remember             the tools petition, ask_human, report_result, remember of server `kingdom`
{"call": tool, "args": {...}}               any tool, by the name under which it is offered
cost                                        usage that costs about so much by the vendor's price table (see prices.py)
{"usage": {"input_tokens": 1, ...}}         usage as it is
fail                                        an error 400 with the text as its message
{"model_error": 529, "times": 2}            an error, so often or always; also retry_after, message, headers
{"drop_stream": true, "times": 1}           a stream that breaks off; without streaming the response is whole
{"delay": 0.5}                              a response that is late
hang                                        a stream that says what was to be said and then nothing more; with "deaf"
                                            the shell stops the agent with SIGSTOP
crash                                       the shell kills the agent with SIGKILL; the code cannot be chosen
report                                      the text that answers the next prompt without a script

A prompt without a script continues with the last script, and is the `{reply}` in its texts; what follows `reply:` in it
if it has that. Where a question waits for a reply, a prompt that begins with "continue" or "continue" is none: the
question is put again. A prompt that begins so and repeats a script that has not come to its end continues with it.
"""
