/* m3: post-trains MiniMax-M3 under mpirun or Slurm, one rank a GPU (or CPU ranks where there is none).
 *
 * Follow the data of `m3 train`:
 *   command.c    the command line of every subcommand     config.c     the YAML file and its option table
 *   trainer.c    opens a run: mesh, weights, data, memory  mesh.c       ranks into tp / pp / ep / dp groups
 *   model.c      the parameter table and storage           weights.c    release safetensors into it
 *   data.c       JSONL into token sequences                batch.c      samples into packed micro-batches
 *   train.c      train_step(), the page to read first      pipeline.c   micro-batches through the stages
 *   block.c      one layer: attention.c, ffn.c, moe.c      head.c       embedding, vocabulary, log-probs
 *   grads.c      reduce, norm                              adam.c       the update
 *   checkpoint.c HDF5 state that any mesh can read         metrics.c    one JSON line a step
 */
#include "command.h"
#include "comm.h"
#include "ops.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static void usage(FILE *out)
{
    fprintf(out, "usage: m3 COMMAND ...      m3 COMMAND --help describes it\n\n");
    for (int i = 0; i < n_commands; i++) fprintf(out, "  m3 %-9s %s\n", commands[i].name, commands[i].about);
}

static enum status dispatch(int argc, char **argv)
{
    for (int i = 0; i < n_commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    usage(stderr);
    return FAIL(ERR_USAGE, "no command \"%s\"", argv[1]);
}

int main(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        usage(argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("m3 0.1\n");
        return 0;
    }
    ops_cpu_sleep(argv);
    signal(SIGXFSZ, SIG_IGN); /* a file beyond the shell's limit is a failed write, with a message, as a full disk is */
    enum status s = comm_open(&argc, &argv);
    log_open(comm_world_rank(), NULL);
    if (!s) s = dispatch(argc, argv);
    /* what every rank found, or another rank knows in words, needs one message */
    bool shared = s == ERR_STOPPED || s == ERR_USAGE || s == ERR_CONFIG || s == ERR_GATE;
    if (s && s != ERR_PEER && (!shared || comm_world_rank() == 0))
        log_line(s == ERR_STOPPED ? LOG_INFO : LOG_ERROR, "%s (%s)", status_message(), status_where());
    int code = status_exit_code(s == ERR_PEER ? comm_peer_status() : s);
    comm_close(comm_world_size() > 1 && s != OK && s != ERR_STOPPED, code);
    return code;
}
