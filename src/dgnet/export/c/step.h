/* @title@
 *
 * One step of @dt@@unit@ of a field on @nodes@ nodes, written by dgnet @version@. C99; needs the mathematical library and no other.
 *
 *     @name@_model *m = @name@_new();
 *     for (int k = 0; k < 100; k++) {
 *         ... change @name@_source(m), @name@_set_boundary(m, ...) where you like ...
 *         @name@_step(m);
 *         ... read @name@_state(m) ...
 *     }
 *     @name@_free(m);
 *
 * Compile it with -DDGNET_REAL=float for single precision. Several models may live side by side; one model is for one thread.
 */
#ifndef @NAME@_H
#define @NAME@_H

#ifndef DGNET_REAL
#define DGNET_REAL double
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef DGNET_REAL @name@_real;
typedef struct @name@_model @name@_model;

enum {
    @NAME@_NODES = @nodes@,
    @NAME@_FIELDS = @fields@, /* @field_names@ */
    @NAME@_DIM = @dim@,
    @NAME@_BOUNDARIES = @conditions@ /* values that may be changed:@boundary_list@ */
};
#define @NAME@_DT @dt@

/* A model at time 0, every field at @offsets@; NULL where memory is short or the matrix has no factors. */
@name@_model *@name@_new(void);
void @name@_free(@name@_model *model);

/* The fields [node][field], in the order of the mesh. Write the initial state here. */
@name@_real *@name@_state(@name@_model *model);

/* The source [node][field], averaged over the next step: @source_unit@. It stays until it is changed; zero at first. */
@name@_real *@name@_source(@name@_model *model);

/* Add a Gaussian spot, power * exp(-|x - centre|^2 / (2 radius^2)), averaged over a step in which its centre moves in a straight line:
 * from [dim], to [dim]. Spots are kept beside the source, which they add to, until they are cleared. */
void @name@_clear_spots(@name@_model *model);
void @name@_spot(@name@_model *model, int field, const @name@_real *from, const @name@_real *to, @name@_real radius, @name@_real power);

/* Values at boundaries: number 0 .. BOUNDARIES - 1, as listed above. */
const char *@name@_boundary(int number);
void @name@_set_boundary(@name@_model *model, int number, @name@_real value);
@name@_real @name@_get_boundary(const @name@_model *model, int number);

/* Advance by DT. 0, or 1 where a value is not finite or memory is short. */
int @name@_step(@name@_model *model);

/* Time since the start, and a new start: what was written to the state is the initial state again. */
double @name@_time(const @name@_model *model);
void @name@_restart(@name@_model *model);

/* Coordinates [node][dim]. */
const @name@_real *@name@_points(void);

#ifdef __cplusplus
}
#endif
#endif
