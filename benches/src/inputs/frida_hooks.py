"""Hooks functions of another process with Frida's Interceptor. Listeners are C functions of a CModule.

The arguments are the process id, then name=address pairs. Each line of standard input is a request, answered by a line:
`way NAME ADDRESS` hooks one function for good; `install NAME COUNT` hooks many, takes them out, and gives the microseconds
of both.
"""

import sys

import frida

SOURCE = r"""
const address = ADDRESSES;
const module = new CModule(`
#include <gum/guminterceptor.h>
void enter(GumInvocationContext *context) {}
void leave(GumInvocationContext *context) {}
`);
const now = new NativeFunction(ptr(address.now), 'uint64', []);
const replacement = ptr(address.replacement);
const both = { onEnter: module.enter, onLeave: module.leave };
const ways = {
  'replace': target => Interceptor.replace(target, replacement),
  'replaceFast': target => Interceptor.replaceFast(target, replacement),
  'listener to entry': target => Interceptor.attach(target, { onEnter: module.enter }),
  'listener to entry and return': target => Interceptor.attach(target, both),
  'probe': target => Interceptor.attach(target, module.enter),
};
const undo = {
  'replaceFast': (target, listener) => Interceptor.revert(target),
  'listener to entry and return': (target, listener) => listener.detach(),
};
rpc.exports = {
  way(name, target) {
    ways[name](ptr(target));
    Interceptor.flush();
  },
  install(name, count) {
    const targets = [];
    for (let number = 0; number < count; number++)
      targets.push(ptr(address.many).add(number * Number(address.step)));
    const way = ways[name];
    const start = now();
    const listeners = targets.map(target => way(target));
    Interceptor.flush();
    const between = now();
    targets.forEach((target, number) => undo[name](target, listeners[number]));
    Interceptor.flush();
    const end = now();
    return [between.sub(start).toNumber() / 1000, end.sub(between).toNumber() / 1000];
  },
};
"""


def main():
    pid = int(sys.argv[1])
    addresses = dict(pair.split("=") for pair in sys.argv[2:])
    session = frida.attach(pid)
    literal = ", ".join(f"{name}: '{address}'" for name, address in addresses.items())
    script = session.create_script(SOURCE.replace("ADDRESSES", "{" + literal + "}"))
    script.load()
    print(f"frida {frida.__version__}", flush=True)
    for line in sys.stdin:
        command, name, value = line.rstrip("\n").split("\t")
        try:
            if command == "way":
                script.exports_sync.way(name, value)
                print("ok", flush=True)
            else:
                times = script.exports_sync.install(name, int(value))
                print("\t".join(f"{time:.1f}" for time in times), flush=True)
        except frida.core.RPCException as error:
            print("refused\t" + str(error).splitlines()[0], flush=True)


main()
