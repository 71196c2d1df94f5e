/* SPDX-License-Identifier: Apache-2.0
 * SIMULATED deviceQuery: behaves as the sample of NVIDIA's CUDA toolkit does, without a GPU.
 *
 * Instead of loading libcuda it reads the simulated one (a text file, see tests/boards/userland.py), which the
 * container runtime must have injected, and as the real one would it opens the device nodes named there. Each line
 * of that file is `key=value`; `open=PATH` may come several times. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* CUDA_ERROR_NO_DEVICE, cuda.h */
enum { NO_DEVICE = 100 };

static const char *const libraries[] = {
	"/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1.1", /* L4T 36 and later */
	"/usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1",
};

struct facts {
	char device_name[64];
	int cc_major, cc_minor;
	int multiprocessors, cores_per_multiprocessor;
	unsigned long long memory_bytes;
	char driver_version[16], runtime_version[16];
	int integrated, pci_bus_id;
};

/* Say on stderr what is simulated about the run; stdout has NVIDIA's text only. */
static void note(const char *format, ...) {
	va_list arguments;
	fputs("SIMULATED deviceQuery: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
}

static int fail(void) {
	printf("cudaGetDeviceCount returned %d\n-> no CUDA-capable device is detected\nResult = FAIL\n", NO_DEVICE);
	return EXIT_FAILURE;
}

static FILE *open_library(void) {
	for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
		FILE *file = fopen(libraries[i], "r");
		if (file)
			return file;
		if (errno != ENOENT) {
			note("%s: %s", libraries[i], strerror(errno));
			return NULL;
		}
	}
	note("no libcuda in this container: the NVIDIA runtime has injected nothing");
	return NULL;
}

static int open_node(const char *path) {
	int descriptor = open(path, O_RDWR | O_CLOEXEC);
	if (descriptor < 0) {
		note("%s: %s", path, strerror(errno));
		return -1;
	}
	close(descriptor);
	return 0;
}

/* Read the facts and open the nodes; return the number of nodes opened, -1 when one of them cannot be. */
static int read_facts(FILE *file, struct facts *facts) {
	char line[256];
	int opened = 0, usable = 1;
	while (fgets(line, sizeof line, file)) {
		line[strcspn(line, "\n")] = '\0';
		char *value = strchr(line, '=');
		if (line[0] == '#' || !value)
			continue;
		*value++ = '\0';
		if (!strcmp(line, "open")) {
			/* Every missing node is named, not only the first. */
			if (open_node(value))
				usable = 0;
			else
				opened++;
		} else if (!strcmp(line, "device_name"))
			snprintf(facts->device_name, sizeof facts->device_name, "%s", value);
		else if (!strcmp(line, "compute_capability"))
			sscanf(value, "%d.%d", &facts->cc_major, &facts->cc_minor);
		else if (!strcmp(line, "multiprocessors"))
			facts->multiprocessors = atoi(value);
		else if (!strcmp(line, "cores_per_multiprocessor"))
			facts->cores_per_multiprocessor = atoi(value);
		else if (!strcmp(line, "memory_bytes"))
			facts->memory_bytes = strtoull(value, NULL, 10);
		else if (!strcmp(line, "driver_version"))
			snprintf(facts->driver_version, sizeof facts->driver_version, "%s", value);
		else if (!strcmp(line, "runtime_version"))
			snprintf(facts->runtime_version, sizeof facts->runtime_version, "%s", value);
		else if (!strcmp(line, "integrated"))
			facts->integrated = atoi(value);
		else if (!strcmp(line, "pci_bus_id"))
			facts->pci_bus_id = atoi(value);
	}
	return usable ? opened : -1;
}

static void print_device(const struct facts *facts) {
	/* The sample pads with blanks in CUDA 10 and with zeros since. */
	const char *multiprocessors = atof(facts->driver_version) < 11
		? "  (%2d) Multiprocessors, (%3d) CUDA Cores/MP:     %d CUDA Cores\n"
		: "  (%03d) Multiprocessors, (%03d) CUDA Cores/MP:    %d CUDA Cores\n";
	printf("Detected 1 CUDA Capable device(s)\n\n");
	printf("Device 0: \"%s\"\n", facts->device_name);
	printf("  CUDA Driver Version / Runtime Version          %s / %s\n", facts->driver_version,
	       facts->runtime_version);
	printf("  CUDA Capability Major/Minor version number:    %d.%d\n", facts->cc_major, facts->cc_minor);
	printf("  Total amount of global memory:                 %.0f MBytes (%llu bytes)\n",
	       (double)facts->memory_bytes / 1048576.0, facts->memory_bytes);
	printf(multiprocessors, facts->multiprocessors, facts->cores_per_multiprocessor,
	       facts->multiprocessors * facts->cores_per_multiprocessor);
	printf("  Integrated GPU sharing Host Memory:            %s\n", facts->integrated ? "Yes" : "No");
	printf("  Device PCI Domain ID / Bus ID / location ID:   0 / %d / 0\n\n", facts->pci_bus_id);
	printf("deviceQuery, CUDA Driver = CUDART, CUDA Driver Version = %s, CUDA Runtime Version = %s, NumDevs = 1\n",
	       facts->driver_version, facts->runtime_version);
	printf("Result = PASS\n");
}

int main(int count, char **arguments) {
	struct facts facts = {0};
	(void)count;
	printf("%s Starting...\n\n CUDA Device Query (Runtime API) version (CUDART static linking)\n\n", arguments[0]);
	FILE *library = open_library();
	if (!library)
		return fail();
	int opened = read_facts(library, &facts);
	fclose(library);
	if (opened < 0)
		return fail();
	print_device(&facts);
	fflush(stdout);
	note("no CUDA ran; %d device nodes of the container were opened", opened);
	return EXIT_SUCCESS;
}
