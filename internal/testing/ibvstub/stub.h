// A queue pair and a completion queue with a driver that does nothing, to measure the binding.
#ifndef NVMF_IBVSTUB_H
#define NVMF_IBVSTUB_H

#include <infiniband/verbs.h>

struct vb_stub {
	struct ibv_context ctx;
	struct ibv_qp qp;
	struct ibv_srq srq;
	struct ibv_cq cq;
	// Work requests that the driver got, and the sum of all their fields.
	uint64_t posted, sum;
	// Posting fails with ENOMEM after this many.
	uint64_t room;
	// Completions that polling returns.
	int completions;
};

struct vb_stub *vb_stub_new(void);

#endif
