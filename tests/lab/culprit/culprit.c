// culprit CASE SECONDS TARGET PORT SOURCE NQN HOSTNQN [KEY:ADDRESS...]: attacks a target in one way
// for so many seconds, over and over. It prints "began" as soon as the target is affected, and a
// summary at the end. The exit code is 1 if the target allowed something forbidden. remote access
// first tries the KEYs and ADDRESSes, in hex.
#include "culprit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *target, *port, *source, *nqn, *hostnqn;
static double deadline;
static char **keys;
static int nkeys;

static struct outcome {
	char what[48];
	int times;
} outcomes[32];

static void count(const char *what, int code)
{
	char text[48];
	int i = 0;

	snprintf(text, sizeof text, code < 0 ? "%s" : "%s %d", what, code);
	while (i < 31 && outcomes[i].times && strcmp(outcomes[i].what, text))
		i++;
	strcpy(outcomes[i].what, text);
	outcomes[i].times++;
}

static void count_event(enum event e, struct ibv_wc *wc)
{
	static const char *names[] = { "no answer", "answered", "sent", "", "disconnected" };
	if (e == FAILED)
		count(ibv_wc_status_str(wc->status), -1);
	else
		count(names[e], -1);
}

static void began(void)
{
	static int said;
	if (!said++) {
		puts("began");
		fflush(stdout);
	}
}

// until_end waits until the queue ends or the time is over, and counts events.
static enum event until_end(struct queue *q, double end)
{
	struct ibv_wc wc;
	enum event e;

	do {
		e = wait_queue(q, now() < end ? 100 : 0, &wc);
		if (e == RESPONSE || e == ENDED || e == FAILED)
			count_event(e, &wc);
	} while (e != ENDED && e != FAILED && (e != NOTHING || now() < end));
	if (e == NOTHING)
		count("still connected", -1);
	return e;
}

// A Read in a SEND with immediate data.
static void send_imm(void)
{
	struct queue admin, io;
	struct ibv_wc wc;
	enum event e = RESPONSE;

	attach(&admin, &io, 1);
	for (int i = 0; i < 100 && e == RESPONSE; i++) {
		struct ibv_send_wr wr = { .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = i };
		receive(&io, 1);
		if (post(&io, &wr, rw(&io, 2, 4096, (uintptr_t)io.data, io.mr->rkey), 64)) {
			count("cannot be posted", -1);
			break;
		}
		while ((e = wait_queue(&io, PATIENCE, &wc)) == SENDS)
			;
		count_event(e, &wc);
		began();
	}
	if (e == NOTHING)
		die("neither an answer nor the end of the queue");
	free_queue(&io);
	free_queue(&admin);
}

// Capsules that are too short or too long: of a stranger on an admin queue, and on an I/O queue.
static void capsules(void)
{
	static const int lengths[] = { 0, 1, 63, 65, 4096, 63, 64 + ICD + 1, 64 + ICD + 4096 };
	struct queue admin, io;

	for (int i = 0; i < 8; i++) {
		struct queue *q = i < 5 ? &admin : &io;
		struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
		if (i >= 5)
			attach(&admin, &io, 1);
		else if (open_queue(&admin, 0, 0, NULL, 0))
			die("rejected with %d", admin.rejected);
		receive(q, 1);
		memset(q->data, 0xFF, lengths[i]);
		if (post(q, &wr, q->data, lengths[i]))
			die("post");
		began();
		if (until_end(q, now() + PATIENCE / 1e3) == NOTHING)
			die("a capsule of %d bytes does not end the queue", lengths[i]);
		if (i >= 5)
			free_queue(&io);
		free_queue(&admin);
	}
}

// allow_reads lets a connected queue pair issue READs and atomics although the reply of the target
// offers none.
static void allow_reads(struct queue *q)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RESET };
	int mask = IBV_QP_STATE, state;

	if (q->id->verbs->device->transport_type == IBV_TRANSPORT_IWARP)
		return; // the connection manager alone moves its queue pairs
	for (state = IBV_QPS_RESET; state <= IBV_QPS_RTS; state++) {
		a.qp_state = state;
		if (state != IBV_QPS_RESET && rdma_init_qp_attr(q->id, &a, &mask))
			die("rdma_init_qp_attr");
		a.max_rd_atomic = 16;
		if (ibv_modify_qp(q->id->qp, &a, mask))
			die("ibv_modify_qp");
	}
}

// remote accesses the memory of the target with the given keys, then with guesses.
static void remote(enum ibv_wr_opcode opcode)
{
	static int tries;
	unsigned long addr;
	unsigned int key;
	struct queue q;
	struct ibv_wc wc;

	if (tries < nkeys)
		sscanf(keys[tries], "%x:%lx", &key, &addr);
	else {
		key = random();
		addr = (random() & 0x7FFFul) << 32 | (random() & 0x7FFFFFF8ul);
	}
	tries++;
	if (open_queue(&q, 0, 0, NULL, 0))
		die("rejected with %d", q.rejected);
	allow_reads(&q);
	struct ibv_send_wr wr = { .opcode = opcode };
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.compare_add = 1;
		wr.wr.atomic.rkey = key;
	} else {
		wr.wr.rdma.remote_addr = addr;
		wr.wr.rdma.rkey = key;
	}
	if (post(&q, &wr, q.data, 8)) {
		count("cannot be posted", -1);
	} else {
		enum event e = wait_queue(&q, opcode == IBV_WR_RDMA_WRITE ? PATIENCE : 2000, &wc);
		if (e == SENDS && opcode != IBV_WR_RDMA_WRITE)
			die("access to %#lx with key %#x succeeds", addr, key);
		if (e == SENDS) // iWARP: the WRITE has left; the target refuses it by ending the stream
			e = wait_queue(&q, PATIENCE, &wc);
		count_event(e, &wc);
		if (e == NOTHING && opcode == IBV_WR_RDMA_WRITE)
			die("a WRITE to %#lx with key %#x does not end the queue", addr, key);
	}
	began();
	free_queue(&q);
}

static void remote_write(void) { remote(IBV_WR_RDMA_WRITE); }
static void remote_read(void) { remote(IBV_WR_RDMA_READ); }
static void remote_atomic(void) { remote(IBV_WR_ATOMIC_FETCH_AND_ADD); }

#define QUEUES 8

// many has Reads (2) or Writes (1) of DATA bytes in flight on all of its queues, and counts their
// results. With receives, responses are received; without, the target can send none.
static void many(int opcode, int receives)
{
	static struct queue admin, io[QUEUES];

	attach(&admin, io, QUEUES);
	for (int i = 0; i < QUEUES; i++) {
		receive(&io[i], receives);
		for (int n = 0; n < 100; n++)
			if (send_command(&io[i], rw(&io[i], opcode, DATA, (uintptr_t)io[i].data,
						    io[i].mr->rkey)))
				break; // it has ended
	}
	began();
	for (int i = 0; i < QUEUES; i++)
		until_end(&io[i], deadline);
	for (int i = 0; i < QUEUES; i++)
		free_queue(&io[i]);
	free_queue(&admin);
}

static void no_receives(void) { many(2, 0); }
// The scenario drops large packets: commands leave, the data for the target's READs does not.
static void stop_serving(void) { many(1, 100); }

// Writes of memory that is deregistered while the target reads it.
static void dead_keys(void)
{
	struct queue admin, io;
	struct ibv_mr *mr;

	attach(&admin, &io, 1);
	mr = ibv_reg_mr(io.mr->pd, io.data, DATA, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	if (!mr)
		die("ibv_reg_mr");
	receive(&io, 64);
	for (int n = 0; n < 64; n++)
		if (send_command(&io, rw(&io, 1, DATA, (uintptr_t)io.data, mr->rkey)))
			break;
	if (random() % 2)
		usleep(random() % 1000);
	ibv_dereg_mr(mr);
	began();
	until_end(&io, now() + 1);
	free_queue(&io);
	free_queue(&admin);
}

// Connections without a Connect command: twice as many as the target has for one address.
static void half_open(void)
{
	static struct queue q[512];
	int n = 0;

	while (n < 512 && now() < deadline && !open_queue(&q[n], 0, 0, NULL, 0))
		n++;
	if (n < 512)
		count("rejected:", q[n].rejected);
	began();
	for (int i = 0; i < n; i++)
		until_end(&q[i], deadline);
	for (int i = 0; i <= n && i < 512; i++)
		free_queue(&q[i]);
}

static void bad_private(void)
{
	static const uint16_t wrong[][5] = { // RECFMT, QID, HRQSIZE, HSQSIZE, CNTLID
		{ 1, 0, 32, 31, 0 },     { 0, 0xFFFF, 32, 31, 1 },  { 0, 0, 0, 31, 0 },
		{ 0, 0, 32, 0, 0 },      { 0, 0, 32, 0xFFFF, 0 },   { 0, 1, 32, 0xFFFF, 1 },
		{ 0, 1, 128, 127, 0xFFFF },
	};
	uint8_t data[56];

	for (int i = 0; i < 7 + 32; i++) {
		struct queue q;
		int len = i < 7 ? 32 : i - 7;
		memset(data, i < 7 ? 0 : 0xFF, sizeof data);
		if (i < 7)
			memcpy(data, wrong[i], sizeof wrong[i]);
		if (!open_queue(&q, 0, 0, data, len))
			die("case %d, %d bytes of private data, is accepted", i, len);
		count("rejected:", q.rejected);
		free_queue(&q);
		began();
	}
}

// Connect requests with nobody waiting for the answer.
static void cm_flood(void)
{
	static struct queue q[64];
	static struct rdma_event_channel *ch[64];
	uint16_t req[16] = { 0, 0, 32, 31, 0 };
	struct rdma_conn_param p = {
		.private_data = req, .private_data_len = 32, .responder_resources = 1, .retry_count = 7,
	};

	for (int i = 0; i < 64; i++) {
		struct rdma_cm_event *e;
		if (!(ch[i] = rdma_create_event_channel()) || dial(&q[i], ch[i]) ||
		    rdma_resolve_route(q[i].id, 2000) || rdma_get_cm_event(ch[i], &e))
			die("dial");
		rdma_ack_cm_event(e);
		count(rdma_connect(q[i].id, &p) ? "refused" : "requests", -1);
	}
	began();
	for (int i = 0; i < 64; i++) {
		free_queue(&q[i]);
		rdma_destroy_event_channel(ch[i]);
	}
}

static const struct {
	const char *name;
	void (*once)(void);
} cases[] = {
	{ "send-imm", send_imm },           { "capsules", capsules },
	{ "remote-write", remote_write },   { "remote-read", remote_read },
	{ "remote-atomic", remote_atomic }, { "no-receives", no_receives },
	{ "stop-serving", stop_serving },   { "dead-keys", dead_keys },
	{ "half-open", half_open },         { "bad-private", bad_private },
	{ "cm-flood", cm_flood },
};

int main(int argc, char **argv)
{
	int rounds = 0;

	if (argc < 8)
		die("see the head of culprit.c");
	target = argv[3], port = argv[4], source = argv[5], nqn = argv[6], hostnqn = argv[7];
	keys = argv + 8;
	nkeys = argc - 8;
	deadline = now() + atof(argv[2]);
	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
		for (; !strcmp(cases[i].name, argv[1]) && (!rounds || now() < deadline); rounds++)
			cases[i].once();
	if (!rounds)
		die("no case %s", argv[1]);
	printf("%d rounds", rounds);
	for (int i = 0; i < 32 && outcomes[i].times; i++)
		printf("%s %d x %s", i ? "," : ":", outcomes[i].times, outcomes[i].what);
	puts("");
	return 0;
}
