#include "culprit.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void die(const char *what, ...)
{
	va_list args;
	va_start(args, what);
	fputs("culprit: ", stderr);
	vfprintf(stderr, what, args);
	fprintf(stderr, " (errno %d: %s)\n", errno, strerror(errno));
	exit(1);
}

double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static struct addrinfo *resolve(const char *host, const char *service)
{
	struct addrinfo *a, hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM };
	if (getaddrinfo(host, service, &hints, &a))
		die("address %s", host);
	return a;
}

// Without a channel, calls of librdmacm wait for their event.
int dial(struct queue *q, struct rdma_event_channel *channel)
{
	static struct ibv_pd *pd;
	static struct addrinfo *from, *to;

	memset(q, 0, sizeof *q);
	q->rejected = -1;
	if (!from) {
		from = resolve(source, NULL);
		to = resolve(target, port);
	}
	if (rdma_create_id(channel, &q->id, NULL, RDMA_PS_TCP))
		return -1;
	if (rdma_resolve_addr(q->id, from->ai_addr, to->ai_addr, 2000))
		return -1;
	if (channel) { // the addresses are known and answered at once
		struct rdma_cm_event *e;
		if (rdma_get_cm_event(channel, &e) || rdma_ack_cm_event(e))
			return -1;
	}
	if (!pd && !(pd = ibv_alloc_pd(q->id->verbs)))
		return -1;
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	if (!(q->cq = ibv_create_cq(q->id->verbs, 2 * DEPTH, NULL, NULL, 0)))
		return -1;
	init.send_cq = init.recv_cq = q->cq;
	int size = DEPTH * 128 + DATA + 2 * ICD;
	if (posix_memalign((void **)&q->mem, 4096, size))
		return -1;
	q->data = q->mem + DEPTH * 128;
	if (!(q->mr = ibv_reg_mr(pd, q->mem, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				 IBV_ACCESS_REMOTE_READ)))
		return -1;
	return rdma_create_qp(q->id, pd, &init);
}

int open_queue(struct queue *q, int qid, int cntlid, const void *private, int len)
{
	// RDMA section 3.1.4, figure 5: RECFMT, QID, HRQSIZE, HSQSIZE (0-based), CNTLID
	uint16_t req[16] = { 0, qid, DEPTH, qid ? DEPTH - 1 : 31, cntlid };
	struct rdma_conn_param p = {
		.private_data = private ? private : req, .private_data_len = private ? len : 32,
		.responder_resources = 16, .initiator_depth = 16, .retry_count = 7, .rnr_retry_count = 7,
	};

	if (dial(q, NULL) || rdma_resolve_route(q->id, 2000))
		die("dial");
	if (!rdma_connect(q->id, &p))
		return 0;
	struct rdma_cm_event *e = q->id->event;
	if (e && e->event == RDMA_CM_EVENT_REJECTED && e->param.conn.private_data_len >= 4)
		q->rejected = ((uint16_t *)e->param.conn.private_data)[1]; // figure 7: STS
	return -1;
}

void free_queue(struct queue *q)
{
	if (q->id && q->id->qp)
		rdma_destroy_qp(q->id);
	if (q->cq)
		ibv_destroy_cq(q->cq);
	if (q->mr)
		ibv_dereg_mr(q->mr);
	if (q->id)
		rdma_destroy_id(q->id);
	free(q->mem);
	memset(q, 0, sizeof *q);
}

enum event wait_queue(struct queue *q, int ms, struct ibv_wc *wc)
{
	double end = now() + ms / 1e3;
	struct pollfd fd = { .fd = q->id->channel->fd, .events = POLLIN };

	for (;;) {
		if (ibv_poll_cq(q->cq, 1, wc) == 1) {
			if (wc->status != IBV_WC_SUCCESS)
				return FAILED;
			return wc->wr_id == SENT ? SENDS : RESPONSE;
		}
		if (poll(&fd, 1, 0) == 1) {
			struct rdma_cm_event *e;
			if (!rdma_get_cm_event(q->id->channel, &e))
				rdma_ack_cm_event(e);
			return ENDED;
		}
		if (now() >= end)
			return NOTHING;
		usleep(200);
	}
}

void receive(struct queue *q, int n)
{
	for (int i = 0; i < n; i++) {
		struct ibv_sge sge = { (uintptr_t)(q->mem + DEPTH * 64 + i * 64), 64, q->mr->lkey };
		struct ibv_recv_wr *bad, wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };
		if (ibv_post_recv(q->id->qp, &wr, &bad))
			return; // the queue has ended
	}
}

int post(struct queue *q, struct ibv_send_wr *wr, void *p, int n)
{
	struct ibv_sge sge = { (uintptr_t)p, n, q->mr->lkey };
	struct ibv_send_wr *bad;

	wr->wr_id = SENT;
	wr->sg_list = &sge;
	wr->num_sge = n ? 1 : 0;
	wr->send_flags = IBV_SEND_SIGNALED;
	return ibv_post_send(q->id->qp, wr, &bad);
}

// Little endian, as the machines of the lab are.
static void put(uint8_t *p, uint64_t v, int n) { memcpy(p, &v, n); }

uint8_t *command(struct queue *q, int opcode, uint32_t n, uint64_t addr, uint32_t key)
{
	uint8_t *sqe = q->mem + q->cid % DEPTH * 64;

	memset(sqe, 0, 64);
	sqe[0] = opcode;
	sqe[1] = 0x40; // PSDT: an SGL
	put(sqe + 2, q->cid++, 2);
	put(sqe + 24, addr, 8);
	put(sqe + 32, n, 3);
	put(sqe + 35, key, 4);
	sqe[39] = 0x40; // keyed data block, address
	return sqe;
}

int send_command(struct queue *q, uint8_t *sqe)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	return post(q, &wr, sqe, 64);
}

int run(struct queue *q, uint8_t *sqe)
{
	struct ibv_wc wc;

	receive(q, 1);
	if (send_command(q, sqe))
		return -1;
	for (;;) {
		enum event e = wait_queue(q, PATIENCE, &wc);
		if (e == SENDS)
			continue;
		if (e != RESPONSE)
			return -1;
		uint8_t *cqe = q->mem + DEPTH * 64 + wc.wr_id * 64;
		q->cntlid = *(uint16_t *)cqe;
		return *(uint16_t *)(cqe + 14) >> 1;
	}
}

uint8_t *rw(struct queue *q, int opcode, uint32_t n, uint64_t addr, uint32_t key)
{
	uint8_t *sqe = command(q, opcode, n, addr, key);

	put(sqe + 4, 2, 4);            // NSID
	put(sqe + 48, n / 512 - 1, 2); // NLB, 0-based
	return sqe;
}

int connect_queue(struct queue *q, int qid, int cntlid)
{
	uint8_t *sqe = command(q, 0x7F, 1024, (uintptr_t)q->data, q->mr->rkey);

	sqe[4] = 1; // Connect
	put(sqe + 42, qid, 2);
	put(sqe + 44, qid ? DEPTH - 1 : 31, 2);
	memset(q->data, 0, 1024);
	q->data[0] = 0xC1; // host ID
	put(q->data + 16, cntlid, 2);
	strcpy((char *)q->data + 256, nqn);
	strcpy((char *)q->data + 512, hostnqn);
	return run(q, sqe);
}

void attach(struct queue *admin, struct queue *io, int n)
{
	if (open_queue(admin, 0, 0, NULL, 0) || connect_queue(admin, 0, 0xFFFF))
		die("connect: rejected with %d", admin->rejected);
	uint16_t cntlid = admin->cntlid;
	uint8_t *sqe = command(admin, 0x7F, 0, 0, 0); // Property Set
	put(sqe + 44, 0x14, 4);                       // CC
	put(sqe + 48, 0x460001, 8);                   // EN, entries of 64 and 16 bytes
	if (run(admin, sqe))
		die("enable");
	sqe = command(admin, 9, 0, 0, 0); // Set Features
	sqe[40] = 7;                      // Number of Queues
	put(sqe + 44, (n - 1) * 0x10001u, 4);
	if (run(admin, sqe))
		die("number of queues");
	for (int i = 0; i < n; i++)
		if (open_queue(&io[i], i + 1, cntlid, NULL, 0) || connect_queue(&io[i], i + 1, cntlid))
			die("I/O queue %d: rejected with %d", i + 1, io[i].rejected);
}
