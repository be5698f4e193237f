// A host that misbehaves over verbs, for requests that nvme/host cannot send because it keeps to
// the rules. queue.c has queues and commands, culprit.c their use.
#ifndef CULPRIT_H
#define CULPRIT_H

#include <stdint.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define DEPTH 128              // commands on a queue
#define DATA (128 << 10)       // bytes of data that a queue has
#define ICD 4096               // in-capsule data of I/O queues, the target's default
#define PATIENCE 60000         // ms: only a hang takes longer

// Work requests: receives have their slot, sends 1 << 32.
#define SENT (1ull << 32)

struct queue {
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct ibv_mr *mr;  // of mem
	uint8_t *mem;       // DEPTH capsules, DEPTH responses of 64 bytes, then DATA and ICD
	uint8_t *data;
	int rejected;       // after open_queue has failed: STS of the reject, -1 without one
	uint16_t cntlid;    // of Connect's response
	uint16_t cid;
};

// Events of a queue.
enum event { NOTHING, RESPONSE, SENDS, FAILED, ENDED };

extern const char *target, *port, *source, *nqn, *hostnqn;

void die(const char *what, ...) __attribute__((format(printf, 1, 2), noreturn));
double now(void);

// dial starts a queue: it resolves the address and makes the queue pair. open_queue connects a
// queue, with the private data of a host unless another is given. Both return 0 or -1. free_queue
// frees a queue in any state.
int dial(struct queue *q, struct rdma_event_channel *channel);
int open_queue(struct queue *q, int qid, int cntlid, const void *private, int len);
void free_queue(struct queue *q);

// wait_queue returns the next event of a queue, with its completion; ENDED if the target has
// disconnected, NOTHING after ms.
enum event wait_queue(struct queue *q, int ms, struct ibv_wc *wc);
// receive posts n receives.
void receive(struct queue *q, int n);
// send posts a work request for n bytes of local memory at p. It returns an errno.
int post(struct queue *q, struct ibv_send_wr *wr, void *p, int n);

// command builds the next command, with a keyed data block of n bytes with a key. send_command
// sends it; run also waits for its status, and returns -1 if the queue ends first.
uint8_t *command(struct queue *q, int opcode, uint32_t n, uint64_t addr, uint32_t key);
int send_command(struct queue *q, uint8_t *sqe);
int run(struct queue *q, uint8_t *sqe);
// rw makes a Read (2) or a Write (1) of n bytes of namespace 2, with the queue's data.
uint8_t *rw(struct queue *q, int opcode, uint32_t n, uint64_t addr, uint32_t key);
// connect_queue sends a Connect command. attach makes a controller with n I/O queues.
int connect_queue(struct queue *q, int qid, int cntlid);
void attach(struct queue *admin, struct queue *io, int n);

#endif
