/* @title@: a co-simulation unit around @name@.c, written by dgnet @version@.
 *
 * Variables are numbers of one list: inputs and parameters first, then outputs. The field advances in steps of @dt@@unit@; a
 * communication step that is no multiple of it leaves the rest to the next one, so outputs are at most one step old. */
#include "@name@.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

enum {
    BOUNDARIES = @NAME@_BOUNDARIES,
    FIELDS = @NAME@_FIELDS,
    DIM = @NAME@_DIM,
    SPOTS = @spots@,
    PROBES = @probes@,
    PER_SPOT = 2 * DIM + 2, /* place, velocity, radius, power */
    FIRST_BOUNDARY = 1,     /* 0 is the time */
    FIRST_SPOT = FIRST_BOUNDARY + BOUNDARIES,
    FIRST_START = FIRST_SPOT + SPOTS * PER_SPOT,
    FIRST_OUTPUT = FIRST_START + FIELDS,
    OUTPUTS = (PROBES + 3) * FIELDS, /* probes, mean, lowest, highest */
    VARIABLES = FIRST_OUTPUT + OUTPUTS
};

static const double start_value[VARIABLES] = {@start_values@};
static const char *const token = "@token@";

/* A probe interpolates between the corners of its cell. */
static const int probe_node[@probe_size@] = {@probe_nodes@};
static const double probe_weight[@probe_size@] = {@probe_weights@};

/* Share of each node in the mean. */
static const double share[@NAME@_NODES] = {@shares@};

typedef struct {
    @name@_model *model;
    double value[VARIABLES];
    double begin, time; /* of the simulation, and of the master */
    long steps;
    bool running, stale; /* stale: outputs are those of an earlier state */
} fmu_unit;

static fmu_unit *fmu_unit_new(const char *given)
{
    if (given == NULL || strcmp(given, token) != 0)
        return NULL;
    fmu_unit *u = calloc(1, sizeof *u);
    if (u == NULL)
        return NULL;
    u->model = @name@_new();
    if (u->model == NULL) {
        free(u);
        return NULL;
    }
    memcpy(u->value, start_value, sizeof u->value);
    u->stale = true;
    return u;
}

static void fmu_unit_free(fmu_unit *u)
{
    if (u != NULL)
        @name@_free(u->model);
    free(u);
}

static void fmu_unit_begin(fmu_unit *u)
{
    for (int i = 0; i < @NAME@_NODES * FIELDS; i++)
        @name@_state(u->model)[i] = (@name@_real)u->value[FIRST_START + i % FIELDS];
    @name@_restart(u->model);
    u->steps = 0;
    u->stale = true;
}

static void fmu_unit_reset(fmu_unit *u)
{
    memcpy(u->value, start_value, sizeof u->value);
    u->begin = u->time = 0;
    u->running = false;
    fmu_unit_begin(u);
}

static void fmu_unit_outputs(fmu_unit *u)
{
    const @name@_real *state = @name@_state(u->model);
    double *out = u->value + FIRST_OUTPUT;
    if (!u->running)
        fmu_unit_begin(u);
    for (int p = 0; p < PROBES; p++)
        for (int f = 0; f < FIELDS; f++) {
            double s = 0;
            for (int c = 0; c <= DIM; c++)
                s += probe_weight[p * (DIM + 1) + c] * (double)state[probe_node[p * (DIM + 1) + c] * FIELDS + f];
            *out++ = s;
        }
    for (int f = 0; f < FIELDS; f++) {
        double mean = 0, low = (double)state[f], high = low;
        for (int i = 0; i < @NAME@_NODES; i++) {
            const double v = (double)state[i * FIELDS + f];
            mean += share[i] * v;
            low = v < low ? v : low;
            high = v > high ? v : high;
        }
        out[f] = mean;
        out[FIELDS + f] = low;
        out[2 * FIELDS + f] = high;
    }
    u->stale = false;
}

static int fmu_unit_get(fmu_unit *u, const uint32_t *references, size_t count, double *to)
{
    u->value[0] = u->time;
    for (size_t k = 0; k < count; k++) {
        if (references[k] >= VARIABLES)
            return 1;
        if (references[k] >= FIRST_OUTPUT && u->stale)
            fmu_unit_outputs(u);
        to[k] = u->value[references[k]];
    }
    return 0;
}

static int fmu_unit_set(fmu_unit *u, const uint32_t *references, size_t count, const double *from)
{
    for (size_t k = 0; k < count; k++) {
        if (references[k] == 0 || references[k] >= FIRST_OUTPUT || !isfinite(from[k]))
            return 1;
        u->value[references[k]] = from[k];
        u->stale = u->stale || !u->running;
    }
    return 0;
}

/* From `now` on by `length`: as many steps of the field as fit. Spots move with their velocities meanwhile. */
static int fmu_unit_advance(fmu_unit *u, double now, double length)
{
    const double end = now + length - u->begin;
    for (int k = 0; k < BOUNDARIES; k++)
        @name@_set_boundary(u->model, k, (@name@_real)u->value[FIRST_BOUNDARY + k]);
    while ((u->steps + 1) * @NAME@_DT <= end + 1e-9 * (fabs(end) + @NAME@_DT)) {
        const double since = u->begin + u->steps * @NAME@_DT - now;
        @name@_clear_spots(u->model);
        for (int s = 0; s < SPOTS; s++) {
            const double *spot = u->value + FIRST_SPOT + s * PER_SPOT;
            @name@_real from[DIM], to[DIM];
            for (int d = 0; d < DIM; d++) {
                from[d] = (@name@_real)(spot[d] + since * spot[DIM + d]);
                to[d] = (@name@_real)(spot[d] + (since + @NAME@_DT) * spot[DIM + d]);
            }
            @name@_spot(u->model, 0, from, to, (@name@_real)spot[2 * DIM], (@name@_real)spot[2 * DIM + 1]);
        }
        if (@name@_step(u->model))
            return 1;
        u->steps++;
    }
    u->time = now + length;
    u->stale = true;
    return 0;
}
