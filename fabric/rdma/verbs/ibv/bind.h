// The C half of the binding: flat arrays in and out, chains of work requests built here.
// Functions return 0 or a positive errno unless noted otherwise.
#ifndef NVMF_IBV_BIND_H
#define NVMF_IBV_BIND_H

#include <stdint.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

// The layouts of verbs.SendWR, verbs.RecvWR and verbs.WC; check.go compares them.
struct vb_send_wr {
	uint64_t wr_id;
	uint64_t remote_addr;
	uint32_t opcode;
	uint32_t flags;
	uint32_t first_sge;
	uint32_t num_sge;
	uint32_t rkey;
	uint32_t invalidate_rkey;
};

struct vb_recv_wr {
	uint64_t wr_id;
	uint64_t num_sge;
	struct ibv_sge sge[2];
};

struct vb_wc {
	uint64_t wr_id;
	uint32_t status;
	uint32_t opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t qp_num;
	uint32_t flags;
	uint32_t invalidated_rkey;
	uint32_t reserved;
};

// Posting returns the number posted in the low half and the errno in the high half. A work request
// that refers to elements beyond the array is EINVAL, and nothing of its chain is posted.
uint64_t vb_post_send(struct ibv_qp *qp, const struct vb_send_wr *wrs, uint32_t n,
		      const struct ibv_sge *sges, uint64_t nsges);
uint64_t vb_post_recv(struct ibv_qp *qp, struct vb_recv_wr *wrs, uint32_t n);
uint64_t vb_post_srq_recv(struct ibv_srq *srq, struct vb_recv_wr *wrs, uint32_t n);
// vb_poll returns the number of completions, or a negative number if the queue has failed.
int vb_poll(struct ibv_cq *cq, struct vb_wc *wcs, int n);
int vb_req_notify(struct ibv_cq *cq);
// vb_drain returns the number of events, or a negative errno.
int vb_drain(struct ibv_comp_channel *ch);

// An IP address and port; addr is IPv4 in its first 4 bytes unless is6.
struct vb_addr {
	uint8_t addr[16];
	uint32_t scope;
	uint16_t port;
	uint8_t valid;
	uint8_t is6;
};

struct vb_device_attr {
	struct ibv_device_attr dev;
	int iwarp;
	int comp_vectors;
};

struct vb_conn_param {
	uint8_t responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count;
	uint8_t private_len;
	uint8_t private_data[256];
};

struct vb_event {
	struct rdma_cm_event *event; // to be acknowledged
	struct rdma_cm_id *id, *listen_id;
	uint32_t type;
	int status;
	struct vb_conn_param param;
};

struct vb_qp_init {
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_srq *srq;
	uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline;
};

struct vb_async {
	struct ibv_async_event event; // to be acknowledged
	struct ibv_cq *cq;            // of an event of a completion queue
	struct ibv_srq *srq;          // of an event of a shared receive queue
	uint32_t qp_num;              // of an event of a queue pair
};

int vb_query(struct ibv_context *ctx, struct vb_device_attr *out);
int vb_get_async(struct ibv_context *ctx, struct vb_async *out);
int vb_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access, struct ibv_mr **out);
int vb_create_srq(struct ibv_pd *pd, uint32_t max_wr, uint32_t max_sge, struct ibv_srq **out);
int vb_to_error(struct ibv_qp *qp);
int vb_shorten_rnr_timer(struct ibv_qp *qp);

int vb_listen(struct rdma_cm_id *id, const struct vb_addr *addr, int backlog, uint8_t tos,
	      const char **call);
int vb_resolve_addr(struct rdma_cm_id *id, const struct vb_addr *src, const struct vb_addr *dst,
		    int ms);
void vb_addrs(struct rdma_cm_id *id, struct vb_addr *local, struct vb_addr *remote);
int vb_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct vb_qp_init *init);
int vb_connect(struct rdma_cm_id *id, struct vb_conn_param *p, int accept);
int vb_reject(struct rdma_cm_id *id, const uint8_t *data, uint8_t len);
int vb_get_event(struct rdma_event_channel *ch, struct vb_event *out);

#endif
