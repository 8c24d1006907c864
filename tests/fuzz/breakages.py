"""Breaks the package on purpose at many places, and says whether the tests notice.

    python tests/fuzz/breakages.py            # all of them
    python tests/fuzz/breakages.py --check    # only whether each text is still there
    python tests/fuzz/breakages.py undo leak  # those whose name has one of these words
    python tests/fuzz/breakages.py newton --record newton/  # whether the record notices

Each breakage replaces a text that occurs once in the package, in a copy of the tree. Kernels are
compiled again where the text is theirs (with ccache, if it is there). Then the tests named beside
the breakage run, up to the first failure of each, and each of them must fail. A text that moves to
another file is still found; one that is rewritten no longer applies, and needs another breakage in
its place. The script fails if a breakage stays unnoticed or no longer applies.

The environment needs the build tools of CONTRIBUTING.md and an installation with the extra "test".
"""

from __future__ import annotations

import argparse
from filecmp import cmp
from pathlib import Path
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from time import monotonic
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
KINDS = {".py", ".pyx", ".pxd", ".pxi", ".c", ".h"}


class Breakage(NamedTuple):
    """A place to break.

    Attributes
    ----------
    name : str
        The part of the package, and what is wrong afterwards.
    old, new : str
        A text that occurs once in the package, and what takes its place.
    tests : str
        What must fail, as names of test files with or without a test, separated by blanks.
    """

    name: str
    old: str
    new: str
    tests: str


BREAKAGES = [
    # Transformers that are fitted from moments.
    Breakage(
        "linear: a PCA with the moments of the first training set",
        "for out, total in zip(memory.reshape(shape), totals, strict=True):",
        "for out, total in zip(memory.reshape(shape), totals[:1] * len(totals), strict=True):",
        "test_linear_transformers::test_rows_and_labels_of_a_fold_do_not_change_its_model",
    ),
    Breakage(
        "linear: a selector whose scores are those of the first fold",
        "maps = [*map(partial(_select, step, min_gap), maps, moments, totals)]",
        "first = moments[:1] * len(maps), totals[:1] * len(maps)\n"
        "            maps = [*map(partial(_select, step, min_gap), maps, *first)]",
        "test_linear_transformers::test_folds_may_select_other_columns",
    ),
    Breakage(
        "linear: equal variances at the cut",
        "if np.any(gaps[k - 1 : k] < MIN_GAP):",
        "if np.any(gaps[k - 1 : k] < 0):",
        "test_linear_transformers::test_equal_variances_at_the_cut_are_left_to_fits",
    ),
    Breakage(
        "linear: an encoder whose categories a training set lacks",
        "learner = None if linear else last",
        "learner = last",
        "test_linear_transformers::test_categories_of_test_rows_select_no_columns",
    ),
    Breakage(
        "linear: candidates with fewer columns use all columns",
        "is_free[:, :, : self._rows.n_features] &= self.column_masks[:, None]",
        "pass",
        "test_linear_transformers::test_a_search_over_numbers_of_columns_equals_grid_search",
    ),
    Breakage(
        "linear: tied scores",
        "if least == greatest or least - greatest < min_gap * abs(least):",
        "if least - greatest < 0:",
        "test_linear_transformers::test_tied_scores_are_left_to_fits",
    ),
    Breakage(
        "linear: components that consist of rounding errors",
        "if np.any(values[: min(k, rank)] < _MIN_VARIANCE * values[0]):",
        "if np.any(values[: min(k, rank)] < 0):",
        "test_linear_transformers::test_components_without_variance_have_no_effect_before_a_penalised_model",
    ),
    Breakage(
        "linear: slices of a PCA keep the variance of the others",
        "total = variances[k:].sum() + n_others * fitted.noise_variance_",
        "total = variances[k:].sum() + 0 * n_others * fitted.noise_variance_",
        "test_linear_transformers::test_fitted_slices_equal_fits",
    ),
    Breakage(
        "linear: models share an array of another setting",
        'return cached(f"{label} {name}", size, make)',
        "return cached(name, size, make)",
        "test_linear_transformers::test_a_search_over_numbers_of_columns_equals_grid_search",
    ),
    # scikit-learn's searches by engines.
    Breakage(
        "accelerated: a model without a promise goes through an engine",
        'if name not in EQUIVALENT_METHODS and (name != "fit" or not equivalent):',
        'if name not in EQUIVALENT_METHODS | {"treecv"} and (name != "fit" or not equivalent):',
        "test_accelerate::test_models_without_a_promise_are_left_to_scikit_learn",
    ),
    Breakage(
        "accelerated: the rows are shuffled, which scikit-learn does not do",
        "classifier=is_classifier(estimator)),\n        shuffle=False,",
        "classifier=is_classifier(estimator)).get_n_splits(),\n        shuffle=True,",
        "test_accelerate::test_a_search_has_the_same_results",
    ),
    Breakage(
        "accelerated: splits that were drawn are drawn on from",
        "        generator.set_state(state)",
        "        generator.get_state()",
        "test_accelerate::test_random_splits_are_those_that_scikit_learn_draws",
    ),
    Breakage(
        "accelerated: folds of LogisticRegressionCV get the models of others",
        "by_fold[_key_of_rows(repeat.cut.tested_from(fold, fold + 1))] = coefficients",
        "by_fold[_key_of_rows(repeat.cut.test_rows((fold + 1) % 3))] = coefficients",
        "test_accelerate::test_logistic_paths_are_those_of_a_solver_that_converges",
    ),
    Breakage(
        "ensembles: estimators that form no grid grow as one",
        "return grid if prod(map(len, grid.values())) == len(estimators) else {}",
        "return grid",
        "test_ensemble_scores::test_several_ensembles_that_form_a_grid_grow_once",
    ),
    Breakage(
        "tables: rows that were made dense keep their sparse form afterwards",
        "shared = self._shared(after.toarray() if is_made_dense else after)",
        "shared = self._shared(after)",
        "test_steps_before_sums::test_sparse_columns_beside_scaled_numbers_are_made_dense_for_newton",
    ),
    # Feature selection from sums.
    Breakage(
        "selection: the models of a fold are trained on its test rows, too",
        "equations = source.equations(train)",
        "equations = source.equations(merge(train, test))",
        "test_select_features::test_no_test_row_reaches_the_model_of_its_fold "
        "test_accelerated_selectors::test_selectors_have_the_same_features",
    ),
    Breakage(
        "selection: test rows are centred by their own means",
        "about(test, equations.origin)",
        "about(test, test.means[0])",
        "test_select_features::test_any_splits",
    ),
    Breakage(
        "selection: dependent columns are inverted",
        "if not (is_regular and np.linalg.eigvalsh(scaled)[0] > _MIN_EIGENVALUE):",
        "if not is_regular and alpha < 0:",
        "test_select_features::test_models_that_do_not_follow_from_sums_are_refused "
        "test_accelerated_selectors::test_what_does_not_follow_from_sums_is_left_to_scikit_learn",
    ),
    Breakage(
        "selection: the last of equal columns is added",
        "means >= means.max() - _MAX_TIE * abs(means.max())",
        "np.arange(len(means)) == len(means) - 1 - np.argmax(means[::-1] >= means.max() - 1e-12)",
        "test_select_features::test_the_first_of_equal_columns_is_chosen",
    ),
    Breakage(
        "selection: splits that are drawn anew in each step are drawn once",
        "if not all(map(np.array_equal, chain(*pairs), chain(*same_pairs))):",
        "if not all(map(np.array_equal, chain(*pairs), chain(*pairs))):",
        "test_accelerated_selectors::test_what_does_not_follow_from_sums_is_left_to_scikit_learn",
    ),
    # Rows elsewhere.
    Breakage(
        "rows elsewhere: a call that is made twice trains the same state twice",
        "return learner.start() if state is None else learner.snapshot(state)",
        "return learner.start() if state is None else state",
        "test_remote_rows::test_any_order_of_calls_gives_the_same_bits",
    ),
    Breakage(
        "rows elsewhere: a model is not trained on the last row of a block",
        "(self._models, state, begin, end, method)",
        "(self._models, state, begin, end - 1, method)",
        "test_remote_rows::test_every_model_sees_its_rows_in_order_and_none_that_it_tests",
    ),
    Breakage(
        "rows elsewhere: a scaler learns of each part of a phase as if it was one",
        '("survey", "replay") if self._surveys and len(spans) > 1 else ("update",)',
        '("update",)',
        "test_remote_rows::test_surveys_in_any_order",
    ),
    Breakage(
        "rows elsewhere: a fold in several blocks is scored by the outputs for one row",
        "np.concatenate(outputs, axis=1)",
        "np.concatenate([a[:, -1:].repeat(a.shape[1], 1) for a in outputs], axis=1)",
        "test_remote_rows::test_any_order_of_calls_gives_the_same_bits",
    ),
    Breakage(
        "rows elsewhere: sums are added in the order in which they come",
        "return [results[call] for call in calls]",
        "return [*results.values()]",
        "test_remote_rows::test_sums_in_any_order",
    ),
    Breakage(
        "remote rows: blocks of a lost worker are not made again",
        "            self._put(lost)\n",
        "",
        "test_dask_workers::test_a_killed_worker_changes_nothing",
    ),
    # More rows than memory.
    Breakage(
        "sweep: a child goes on with the state of its parent, which its sibling trains",
        "self.add(left, self._copy(state), node)",
        "self.add(left, state, node)",
        "test_sweeps_over_files::test_every_model_sees_its_rows_in_the_same_order"
        " test_large_rows::test_scores_are_those_of_rows_in_memory",
    ),
    Breakage(
        "sweep: a model is not trained on the last row of a piece",
        "Part(model.state, phase, start - phase.start, end - phase.start)",
        "Part(model.state, phase, start - phase.start, end - phase.start - 1)",
        "test_sweeps_over_files::test_every_model_sees_its_rows_in_the_same_order",
    ),
    Breakage(
        "sweep: a reading of a piece serves one model alone",
        "                    n_updates += self._process(models, self.bounds[piece + 1])\n",
        "                    n_updates += self._process(models[:1], self.bounds[piece + 1])\n"
        "                    self.waiting[piece] += models[1:]\n"
        "                    break\n",
        "test_sweeps_over_files::test_so_many_readings",
    ),
    Breakage(
        "sweep: a running scaler learns of each part of a phase as if it was one",
        "            if begin == 0:\n                self.survey(state, phase)",
        "            if begin >= 0:\n                self.survey(state, phase)",
        "test_large_rows::test_scores_are_those_of_rows_in_memory",
    ),
    Breakage(
        "row file: the rows of a region stay in the order in which they came",
        "self.rows[part][rank]",
        "self.rows[part]",
        "test_large_rows::test_a_file_holds_the_padded_rows",
    ),
    Breakage(
        "row file: it has a name, which a killed process leaves behind",
        "TemporaryFile(buffering=0, dir=folder)",
        "open(f'{folder}/rows', 'w+b', buffering=0)",
        "test_large_rows::test_a_killed_process_leaves_nothing_on_the_disk",
    ),
    Breakage(
        "row file: the outputs of all rows are in memory",
        "if self.max_bytes is None or n_bytes <= self.max_bytes // _BESIDE:",
        "if True:",
        "test_large_rows::test_long_scores_of_rows_are_in_a_file",
    ),
    Breakage(
        "rows: a file that was written meanwhile is read on",
        "if self._stamp is None or stamp_of(_numbers_of(self.X)) == self._stamp:",
        "if True:",
        "test_large_rows::test_a_file_that_changes",
    ),
    # Ensembles that grow.
    Breakage(
        "growing: bins of the first fold are kept for all",
        "key = first_key((chunk, name), encode)",
        "key = first_key((0, name), encode)",
        "test_ensemble_leaks::test_what_is_kept_for_other_trials_has_not_seen_the_fold"
        " test_ensemble_scores::test_trials_over_kept_bins_have_scores_of_their_own",
    ),
    Breakage(
        "growing: kept bins leave out no column, however many rows a leaf must have",
        "1 + int(facts[facts < sizes[0]].max(initial=0))",
        "1",
        "test_ensemble_scores::test_trials_over_kept_bins_have_scores_of_their_own",
    ),
    Breakage(
        "growing: rows of CatBoost with categories are quantized",
        "if not categories:",
        "if True:",
        "test_first_trees_are_fits::test_frames_with_categories",
    ),
    Breakage(
        "growing: rows of CatBoost with other borders are shared",
        'for name in (*_OF_BORDERS, "cat_features") if name in given',
        'for name in ("cat_features",) if name in given',
        "test_ensemble_scores::test_trials_over_kept_bins_have_scores_of_their_own",
    ),
    Breakage(
        "growing: labels of boosters are the least probable",
        "predicted = columns[0].argmax(axis=1)",
        "predicted = columns[0].argmin(axis=1)",
        "test_ensemble_scores::test_xgboost_has_a_number_of_trees_where_none_is_given",
    ),
    Breakage(
        "growing: the best trial's curve is read in the wrong direction",
        "end = reached + log(ends[-1]) - at[-1]",
        "end = reached + at[-1] - log(ends[-1])",
        "test_ensemble_races::test_the_final_loss_is_that_of_the_best_trial_after_as_much_learning",
    ),
    Breakage(
        "growing: the rows of the first fold count once",
        "np.square(residuals).sum() + weight * variance",
        "np.square(residuals).sum() + variance",
        "test_ensemble_races::test_the_margin_follows_from_completed_trials_and_from_rows",
    ),
    Breakage(
        "growing: further folds leave as much doubt",
        "share = (n_folds - k) / (k * max(1, n_folds - 1))",
        "share = (n_folds - k) / max(1, n_folds - 1)",
        "test_ensemble_races::test_more_folds_leave_less_doubt",
    ),
    Breakage(
        "growing: settings that are searched beside the size share ensembles",
        "key = first_key((ensemble, tuple(methods)), encode, lasting_key)",
        "key = first_key((type(ensemble), tuple(methods)), encode, lasting_key)",
        "test_ensemble_scores::test_a_grid_of_sizes_grows_each_other_setting_once"
        " test_ensemble_scores::test_searched_sizes_have_the_scores_of_fits",
    ),
    Breakage(
        "growing: of several best numbers of trees the last one is taken",
        "losses[1:] < best_so_far[:-1]",
        "losses[1:] <= best_so_far[:-1]",
        "test_ensemble_scores::test_the_first_of_several_best_sizes_is_taken",
    ),
    Breakage(
        "growing: trees end one too late",
        "np.flatnonzero(n_trees - n_trees[at_best] >= patience)",
        "np.flatnonzero(n_trees - n_trees[at_best] > patience)",
        "test_ensemble_scores::test_trees_end_where_the_mean_of_the_folds_does",
    ),
    Breakage(
        "growing: what the first models say is divided by the number of all",
        "return total / n_trees",
        "return total / self.n_trees",
        "test_first_trees_are_fits::test_first_trees_of_a_classifier_say_what_a_fit_says",
    ),
    Breakage(
        "growing: cut trees have a leaf too many",
        "remains = nodes < 2 * value - 1",
        "remains = nodes < 2 * value + 1",
        "test_ensemble_scores::test_trees_of_one_growth_are_those_of_a_fit",
    ),
    Breakage(
        "growing: several numbers of trees are scored on rows of each other",
        "begins = len(targets) * np.arange(n_times)",
        "begins = np.arange(n_times)",
        "test_ensemble_scores::test_the_curve_is_that_of_fits_of_each_size",
    ),
    Breakage(
        "growing: further trees that were grown at once lack the scores of all but the last block",
        "if sizes and (n_before < block <= end or block == end):",
        "if sizes and block == end:",
        "test_ensemble_scores::test_all_numbers_of_trees_of_a_store_are_found_again",
    ),
    # Nested cross-validation.
    Breakage(
        "nested: a model is trained on the fold that it is chosen for",
        "for fold in self.models[self.model(chunk)]:",
        "for fold in self.models[self.model(chunk)][-1:]:",
        "test_nested::test_the_choice_for_a_fold_does_not_see_it"
        " test_nested::test_it_is_the_nested_loop_of_scikit_learn",
    ),
    Breakage(
        "nested: sums of a pair leave out one fold alone",
        "            yield without_both, None\n",
        "            yield rest, None\n",
        "test_nested::test_the_choice_for_a_fold_does_not_see_it"
        " test_nested::test_it_is_the_nested_loop_of_scikit_learn",
    ),
    Breakage(
        "nested: the two scores of a pair are exchanged",
        "table[left_out, tested] = repeat_scores",
        "table[tested, left_out] = repeat_scores",
        "test_nested::test_it_is_the_nested_loop_of_scikit_learn",
    ),
    Breakage(
        "nested: a trial is chosen by the fold that scores it too",
        "means = np.mean(inner[:, number, fold, np.arange(n_folds) != fold], axis=1)",
        "means = np.array([one.mean() for _, one in sorted(own.items())])",
        "test_nested::test_the_choice_for_a_fold_does_not_see_it",
    ),
    Breakage(
        "nested: each tree of a pair is fitted twice",
        "for _, chunks in groupby(batch, self._folds.model):",
        "for chunks in ([one] for one in batch):",
        "test_nested::test_each_pair_of_folds_is_fitted_once",
    ),
    Breakage(
        "nested: trees without a fold have its rows",
        "rows = np.flatnonzero(ids != fold)",
        "rows, ids = np.arange(len(ids)), np.where(ids == fold, -1, ids)",
        "test_nested::test_where_pairs_of_folds_cannot_be_left_out_at_once",
    ),
    # Kernels.
    Breakage(
        "kernels: random orders do not depend on the rows seen",
        "counter = chain(chain(chain(seed, span.start), span.stop), n_seen)\n"
        "    cdef Py_ssize_t i, j\n",
        "counter = chain(chain(seed, span.start), span.stop)\n    cdef Py_ssize_t i, j\n",
        "test_kernels::test_order_equals_twin"
        " test_cross_validate::test_classifier_equals_the_naive_tree",
    ),
    Breakage(
        "kernels: replays leak the first row that is held out",
        "if current >= held_out.start:",
        "if current > held_out.start:",
        "test_epochs::test_the_order_is_that_of_the_twin"
        " test_epochs::test_no_label_of_a_fold_reaches_its_own_model",
    ),
    Breakage(
        "kernels: PEGASOS in pairs compares with the next step",
        "threshold = <floating> (settings.alpha[0] * steps)\n",
        "threshold = <floating> (settings.alpha[0] * (steps + 1))\n",
        "test_sibling_training::test_pairs_are_what_they_are_in_turns",
    ),
    Breakage(
        "kernels: one of two rows is tested by the model that was trained on it",
        "added, x + i * width, z, factor, x + (1 - i) * width, width",
        "added, x + i * width, z, factor, x + i * width, width",
        "test_sibling_training::test_two_rows_are_tested_without_their_states",
    ),
    Breakage(
        "kernels: two rows are tested without their scaler",
        "        self.learner.test_two = NULL\n",
        "",
        "test_incremental_transformers::test_scaled_folds_are_those_of_partial_fit",
    ),
    Breakage(
        "rows: memory of outputs goes while a part of it is in use",
        "parts.append(lent[:].view(np.ndarray))",
        "parts.append(lent.view(np.ndarray))",
        "test_reused_memory::test_parts_of_memory_go_one_by_one",
    ),
    Breakage(
        "rows: memory is lent again while a part of it is in use",
        "lent = memory.view(_Lent)",
        "lent = memory.view()",
        "test_reused_memory::test_memory_is_used_again_when_nobody_looks_at_it",
    ),
    Breakage(
        "kernels: lanes use products of before they are projected",
        "    if absorbed and learner.sparse.indptr == NULL:\n",
        "    if False:\n",
        "test_lanes::test_many_are_as_one_by_one",
    ),
    Breakage(
        "kernels: rows go to the places of others",
        "            out[order[i]] = <uint32_t> i\n",
        "            out[i] = order[i]\n",
        "test_kernels::test_an_order_has_an_inverse_if_each_row_is_there_once",
    ),
    Breakage(
        "kernels: sparse weights that PEGASOS has projected are not undone",
        "remember_all(log, state, learner.state_bytes)\n            absorb(average,",
        "pass\n            absorb(average,",
        "test_cross_validate::test_projections_of_wide_sparse_rows_are_undone_bit_for_bit",
    ),
    Breakage(
        "kernels: SGD counts a row too few in averages",
        "        v += learner.width\n    common.n_averaged += averages\n",
        "        v += learner.width\n",
        "test_kernels::test_classifier_equals_twin"
        " test_cross_validate::test_classifier_equals_the_naive_tree",
    ),
    Breakage(
        "kernels: a batch of SVRG is rounded down",
        "min(stage.batch_size + 0.5, <double>",
        "min(stage.batch_size, <double>",
        "test_kernels::test_classifier_equals_twin",
    ),
    Breakage(
        "kernels: a step of SVRG is corrected by its own slope",
        "p[1] = dot_row(rows, row, anchors + offset, z)",
        "p[1] = p[0]",
        "test_kernels::test_regressor_equals_twin",
    ),
    Breakage(
        "kernels: K-means counts rows, not weights",
        "masses[c] += weight\n        share =",
        "masses[c] += 1\n        share =",
        "test_kernel_weights::test_weighted_kmeans_equals_its_twin",
    ),
    Breakage(
        "kernels: a density regularises off the diagonal alone",
        "out[i * n + i] += settings.reg_covar",
        "pass",
        "test_cross_validate::test_unsupervised_equals_the_naive_tree",
    ),
    Breakage(
        "kernels: lanes of PEGASOS make no update at a margin of 0 in step 1",
        "(settings.alpha[lane] * steps) or steps == 0 else 0",
        "(settings.alpha[lane] * steps) else 0",
        "test_lanes::test_each_lane_is_what_it_is_alone test_lanes_outputs",
    ),
    Breakage(
        "kernels: a tested row of a pair gets the outputs of the other",
        "settings.out_rows, outputs + is_second * n_lanes, out)",
        "settings.out_rows, outputs, out)",
        "test_lanes::test_each_lane_is_what_it_is_alone",
    ),
    Breakage(
        "kernels: lanes sum sparse rows in another order",
        "W *s = room + (columns[i] & 7) * n_lanes;",
        "W *s = room + (columns[i] & 3) * n_lanes;",
        "test_lanes::test_each_lane_is_what_it_is_alone"
        " test_kernel_weights::test_each_weighted_lane_is_what_it_is_alone",
    ),
    Breakage(
        "kernels: lanes sum nonzeros in another order",
        "SUM_OF_TWO(V, NAME##_##SET, 2, even[k] +=)",
        "SUM_OF_TWO(V, NAME##_##SET, 3, even[k] +=)",
        "test_lanes_skip_zeros::test_each_lane_is_what_it_is_alone",
    ),
    Breakage(
        "kernels: a weight that overflows is skipped where rows have zeros",
        "        if (seen == 0)",
        "        if (1)       ",
        "test_lanes_skip_zeros::test_what_overflows_shows_in_rows_with_a_zero_there",
    ),
    Breakage(
        "kernels: lanes with weights that are not finite skip zeros when they are tested",
        "stop - start > 1 and all_finite(learner, weights)",
        "stop - start > 1",
        "test_lanes_skip_zeros::test_what_overflows_shows_in_rows_with_a_zero_there",
    ),
    Breakage(
        "kernels: lanes find nonzeros in the first word only",
        "nonzeros[word] = bits;",
        "nonzeros[0] = bits;   ",
        "test_lanes_skip_zeros::test_each_lane_is_what_it_is_alone",
    ),
    Breakage(
        "kernels: rows are tested by a scaler of no rows",
        "dense.values + row * dense.width, dense.width, &moments",
        "dense.values + span.start * dense.width, dense.width, &moments",
        "test_incremental_transformers::test_scaled_folds_are_those_of_partial_fit",
    ),
    Breakage(
        "kernels: sparse rows are not scaled",
        "values[j - begin] = x[j] if factor == NULL else x[j] * factor[rows.columns[j]]",
        "values[j - begin] = x[j]",
        "test_incremental_transformers::test_sparse_rows_are_scaled_without_their_means",
    ),
    Breakage(
        "kernels: numbers that are not finite pass in the ninth column",
        "check += 0 * x[j];",
        "",
        "test_kernels::test_copying_sees_what_is_not_finite",
    ),
    Breakage(
        "kernels: products of sparse rows lack the squares",
        "for b in range(a, starts[i + 1]):\n                    row",
        "for b in range(a + 1, starts[i + 1]):\n                    row",
        "test_glm_kernels::test_products_of_sparse_rows"
        " test_newton::test_sparse_rows_have_the_models_of_dense_ones",
    ),
    Breakage(
        "kernels: the largest of the last outputs is not found",
        "for k in range(1, n_outputs):",
        "for k in range(1, 2):",
        "test_glm_kernels::test_softmax",
    ),
    Breakage(
        "kernels: the predictor of a row of the other class grows without a limit",
        "x = limit if x > limit else x",
        "x = x",
        "test_glm_kernels::test_slopes_of_logistic_losses",
    ),
    Breakage(
        "kernels: products of two columns are squares of the first",
        "products[b] = x[a] * x[a + b]",
        "products[b] = x[a] * x[a]",
        "test_glm_kernels::test_products_of_columns",
    ),
    # Models that have converged.
    Breakage(
        "newton: the rows of a fold train its model",
        "train[are_trained[0]] += sums[are_trained[0]]",
        "train += sums",
        "test_newton::test_no_row_reaches_the_model_that_tests_it"
        " test_newton::test_folds_are_those_of_converged_fits",
    ),
    Breakage(
        "newton: the rows of a fold train its model where rows or classes have weights",
        "            _zero_excluded(z, are_trained)\n",
        "",
        "test_newton::test_folds_are_those_of_converged_fits",
    ),
    Breakage(
        "newton: all rows train the models of texts",
        "for part in chunks.train_parts(chunk):\n            weights",
        "for part in [slice(0, n_rows)]:\n            weights",
        "test_newton_wide::test_no_row_reaches_the_model_that_tests_it"
        " test_newton_wide::test_folds_are_those_of_converged_fits",
    ),
    Breakage(
        "newton: models of texts end too soon",
        "if error_bound <= MAX_ERROR:",
        "if error_bound <= 1e3 * MAX_ERROR:",
        "test_newton_wide::test_folds_are_those_of_converged_fits",
    ),
    Breakage(
        "newton: predictors of texts stay float32",
        "if not is_exact and (error_bound <= _MAX_ERROR_OF_FLOAT32 or norm >= last_norm > 0):",
        "if False:",
        "test_newton_wide::test_predictors_near_the_minimum_are_those_of_float64",
    ),
    Breakage(
        "newton: all test rows weigh alike in the end of a search",
        "np.ones(len(z)) if score_weights is None else score_weights[indices]",
        "np.ones(len(z))",
        "test_newton::test_slopes_of_test_rows_are_means_by_the_weights_of_scores",
    ),
    Breakage(
        "newton: a metric is right wherever a model goes",
        "fractions = np.where(is_measured, self._error_bounds[indices] / MAX_ERROR, 1)",
        "fractions = np.zeros(len(indices))",
        "test_newton::test_many_rows_have_the_models_of_converged_fits",
    ),
    Breakage(
        "newton: what is left is as far as the last step, however old its metric is",
        "moved + last * np.exp(moved) < limits[left]",
        "moved + last < limits[left]",
        "test_newton::test_slopes_that_have_vanished_are_no_sign_of_a_minimum",
    ),
    Breakage(
        "newton: models move no row by more than a quarter of what is between the ends of columns",
        "(high - low) / 2)",
        "(high - low) / 4)",
        "test_newton::test_how_far_models_move_the_rows_that_they_are_trained_on",
    ),
    Breakage(
        "newton: a Hessian keeps the second derivatives of any other model",
        "_MAX_DIFFERENCE = 0.05",
        "_MAX_DIFFERENCE = 1e9",
        "test_newton::test_many_rows_have_the_models_of_converged_fits",
    ),
    Breakage(
        "newton: rounding is never too large for float32",
        "_MAX_ROUNDING = 2e-8",
        "_MAX_ROUNDING = 1.0",
        "test_newton::test_many_rows_have_the_models_of_converged_fits",
    ),
    Breakage(
        "newton: a column of one number keeps the coefficient of all rows",
        "        is_free[:, :, : self._rows.n_features] = np.isnan(self._constants(columns))\n",
        "",
        "test_newton::test_a_column_of_one_number_in_the_training_rows_has_no_coefficient",
    ),
    Breakage(
        "newton: the scales of a fold are those of all rows",
        "np.square(scales / objective.scale)",
        "np.square(scales[-1:] / objective.scale)",
        "test_newton::test_folds_are_those_of_converged_fits",
    ),
    Breakage(
        "newton: a row that is left out has a part in its refinement",
        "            z[indices[:, None] == left_out] = 0\n",
        "",
        "test_newton_leave_one_out::test_rows_are_those_of_fits"
        " test_newton_leave_one_out::test_a_row_has_no_part_in_its_prediction",
    ),
    Breakage(
        "neighbors: the choice among equal distances is that of a larger search",
        "        n_replaceable[rows, :-1] = n_tied[:, :-1] * is_split\n",
        "",
        "test_neighbors::test_all_settings_are_those_of_fits",
    ),
    Breakage(
        "neighbors: votes that another choice would move are counted as certain",
        "(2 * n_replaceable * vote)[rows]",
        "(0 * n_replaceable * vote)[rows]",
        "test_neighbors::test_all_settings_are_those_of_fits",
    ),
    Breakage(
        "neighbors: sums that are rounded are taken for exact",
        "return np.array_equal(scaled, np.rint(scaled))",
        "return True",
        "test_neighbors::test_all_settings_are_those_of_fits",
    ),
    Breakage(
        "neighbors: a row that is left out is its own neighbour",
        "        is_other = indices != tested[:, None]\n",
        "        is_other = (np.arange(size + 2) <= size) & (indices >= 0)\n",
        "test_neighbors::test_rows_that_are_left_out_one_by_one",
    ),
    Breakage(
        "neighbors: means by distance lack the farthest neighbour",
        "                    sums = products[:, :, :size].sum(axis=2)\n",
        "                    sums = products[:, :, : size - 1].sum(axis=2)\n",
        "test_neighbors::test_all_settings_are_those_of_fits",
    ),
    Breakage(
        "neighbors: training rows of a fold are taken for the first rows of all",
        "return self._pack(model, size, distances[order], train[indices[order]])",
        "return self._pack(model, size, distances[order], indices[order])",
        "test_neighbors::test_all_settings_are_those_of_fits test_engine_contract::TestNeighbors",
    ),
    Breakage(
        "neighbors: of equal votes the last class is taken",
        "outputs[:, columns.start] = votes.argmax(axis=0)",
        "outputs[:, columns.start] = len(votes) - 1 - votes[::-1].argmax(axis=0)",
        "test_neighbors::test_all_settings_are_those_of_fits",
    ),
    Breakage(
        "neighbors: all neighbours weigh alike",
        'None if weighting == "uniform" else _weights_by_distance(distances)',
        "None",
        "test_neighbors::test_all_settings_are_those_of_fits",
    ),
    # The core.
    Breakage(
        "core: what a batch has scored is revealed at once",
        "self.book.reveal(repeat, ends.popleft())",
        "self.book.reveal(repeat, max(ends.popleft(), repeat.cut.n_folds))",
        "test_objective",
    ),
    Breakage(
        "core: folds that are stored are evaluated again",
        "[chunk for chunk in folds if chunk not in done]",
        "[*folds]",
        "test_cached_fits",
    ),
    Breakage(
        "core: a candidate that has failed keeps its scores in a batch",
        "        result.events = [] if run.plan.fallback is None else [event]\n",
        "        result.events = [TestedFolds(0, repeat.plan.root, 0)]\n",
        "test_evaluation_loop",
    ),
    # Fits.
    Breakage(
        "fits: the cached result of a fold is that of the first",
        "FoldResult.size(*self._stored_shapes(chunk)), self._fold_keys[chunk]",
        "FoldResult.size(*self._stored_shapes(chunk)), self._fold_keys[0]",
        "test_cached_fits",
    ),
    Breakage(
        "fits: each fit forgets the updates of those before it",
        "sink.cost.n_updates += fitted.n_trained\n                            yield",
        "sink.cost.n_updates = fitted.n_trained\n                            yield",
        "test_fit_method",
    ),
    Breakage(
        "fits: a fold is scored with the weights of its training rows",
        "None if self.score_weights is None else self.score_weights[test]\n",
        "None if self.score_weights is None else self.score_weights[: len(test)]\n",
        "test_sample_weights",
    ),
    Breakage(
        "fits: test rows are counted as trained on",
        "            n_trained = len(train)\n            fitted, X, y",
        "            n_trained = len(train) + len(splits[0].test)\n            fitted, X, y",
        "test_fit_method",
    ),
    Breakage(
        "fits: predictions are in the order of the folds",
        "    return in_given_order(np.concatenate(responses), rows)\n",
        "    return in_given_order(np.concatenate(responses), np.sort(rows))\n",
        "test_fit_method",
    ),
    # The tree.
    Breakage(
        "tree: the compiled walk splits in other places",
        "middle = (first + last + 1) // 2                            # m = floor",
        "middle = (first + last) // 2                                # m = floor",
        "test_cross_validate::test_compiled_and_python_recursion_agree",
    ),
    Breakage(
        "tree: replays of a pair leak rows that are held out",
        "span = draw_order(tree, span, held_out, tree.order)\n    train_pair",
        "held_out = Span(held_out.start + 1, held_out.stop + 1, NULL)\n"
        "        span = draw_order(tree, span, held_out, tree.order)\n    train_pair",
        "test_epochs::test_the_compiled_walk_is_that_over_rows_one_by_one",
    ),
    Breakage(
        "tree: of the head of a state, 16 bytes are undone",
        "remember_part(&tree.log, state, learner.head_bytes)",
        "remember_part(&tree.log, state, 16)",
        "test_cross_validate::test_wide_sparse_rows_are_undone_bit_for_bit"
        " test_epochs::test_phases_on_wide_rows_are_undone",
    ),
    Breakage(
        "tree: siblings leak into each other's state in Python",
        "    child = learner.snapshot(state)\n"
        "    n_updates = train(learner, child, plan.phase(node, left))\n"
        "    n_updates += walk_to_leaves(",
        "    child = state\n"
        "    n_updates = train(learner, child, plan.phase(node, left))\n"
        "    n_updates += walk_to_leaves(",
        "test_cross_validate::test_no_label_of_a_fold_reaches_its_own_model",
    ),
    Breakage(
        "tree: all epochs of the standard method have one order",
        "start + self.n_rows, epoch * len(rows), rows)",
        "start + self.n_rows, 0, rows)",
        "test_epochs::test_the_standard_method_makes_shuffled_epochs",
    ),
    # Rows and folds.
    Breakage(
        "folds: scores of leave-one-out are in prepared order",
        "return Folds(order, n_folds, numbers=order if n_folds == n_rows else None)",
        "return Folds(order, n_folds)",
        "test_cross_validate::test_classifier_equals_the_naive_tree",
    ),
    Breakage(
        "folds: shuffled folds get each other's numbers",
        "folds = np.argsort(numbers)[folds]",
        "folds = numbers[folds]",
        "test_cross_validate",
    ),
    Breakage(
        "rows: negative weights pass",
        "np.isfinite(weights) & (weights >= 0)",
        "np.isfinite(weights)",
        "test_estimator_weights::test_bad_weights",
    ),
    # Scores.
    Breakage(
        "scores: the hinge of several classes takes the mean of the others",
        "of_true_class - others.max(axis=1)",
        "of_true_class - np.sort(others, axis=1)[:, -2]",
        "test_cross_validate::test_losses_are_scikit_learns_metrics",
    ),
    Breakage(
        "scores: the mean of weighted losses is over rows",
        "totals = np.add.reduceat(rows.weights, rows.begins)",
        "totals = fold_sizes(rows.begins, len(rows))",
        "test_sample_weights",
    ),
    Breakage(
        "scores: shares of weighted rows are not squared",
        "squares = np.square(weights / np.repeat(np.add.reduceat(weights, begins), sizes))",
        "squares = weights / np.repeat(np.add.reduceat(weights, begins), sizes)",
        "test_intervals",
    ),
    Breakage(
        "scores: the standard error of a pooled loss ignores weights",
        "influence = (losses - mean) / weights.sum()",
        "influence = (losses - mean) / len(weights)",
        "test_pooled::test_the_standard_error_of_a_weighted_mean",
    ),
    # Exact folds.
    Breakage(
        "exact: merged moments lack what lies between the means",
        "steps *= np.sqrt(first.weights * share)[:, None]",
        "steps *= np.sqrt(share)[:, None]",
        "test_sums::test_regressors_score_as_fits_do",
    ),
    Breakage(
        "exact: squared errors lack those of the means",
        "errors += weights[:, None, None] * np.square(mean_errors)",
        "errors += np.square(mean_errors)",
        "test_sums::test_regressors_score_as_fits_do",
    ),
    Breakage(
        "exact: a chunk leaks into the moments of all rows but it",
        "segments = [*segments[:index], *others, *segments[index + 1 :]]",
        "segments = [*segments]",
        "test_sums_leave_one_out",
    ),
    Breakage(
        "exact: growing training sets forget their beginnings",
        "so_far = merge(so_far, moments) if extends else moments",
        "so_far = moments",
        "test_sums::test_regressors_score_as_fits_do test_sums_discriminants",
    ),
    Breakage(
        "exact: a training set extends each that is smaller",
        "extends = n > 0 and np.array_equal(rows[:n], previous)",
        "extends = 0 < n <= len(rows)",
        "test_pls::test_scores_are_those_of_fits",
    ),
    Breakage(
        "exact: models are trained on the cells of their test sets",
        "train, test = (reduce(merge, [collected[cell] for cell in part]) for part in members)",
        "test, train = (reduce(merge, [collected[cell] for cell in part]) for part in members)",
        "test_curves::test_cells_are_read_once"
        " test_curves::test_no_model_of_a_cell_changes_with_the_rows_that_it_tests",
    ),
    Breakage(
        "pls: each component explains the same part of the targets",
        "b = b - np.outer(products, y_loadings)",
        "b = b - 0 * np.outer(products, y_loadings)",
        "test_pls::test_scores_are_those_of_fits test_pls::test_predictions_are_those_of_fits",
    ),
    Breakage(
        "pls: components are made of rounding errors",
        "if not square * _MAX_ERROR > _EPS * largest * np.abs(rotation).sum() ** 2:",
        "if not square:",
        "test_pls::test_components_beyond_the_rank_are_fitted",
    ),
    Breakage(
        "pls: several targets converge further than in scikit-learn",
        "if b.shape[1] == 1 or np.sum(np.square(weights - previous)) < tol:",
        "if b.shape[1] == 1 or np.sum(np.square(weights - previous)) < tol / 1e6:",
        "test_pls::test_several_targets_take_as_many_iterations",
    ),
    Breakage(
        "curves: random splits are drawn anew for each permutation",
        "if _is_random(settings.cv):",
        "if False:",
        "test_curves::test_calls_that_are_left_to_scikit_learn",
    ),
    Breakage(
        "lasso: the models of the first fold are those of all",
        "coef = self._solve_scaled(parts, chunk, self._starts) * np.abs(q).max(axis=0)",
        "coef = self._starts * np.abs(q).max(axis=0)",
        "test_lasso::test_folds_are_those_of_converged_fits test_engine_contract::TestExact",
    ),
    Breakage(
        "lasso: columns that depend on each other in a training set alone are taken for equal",
        "is_unique = not self._change_predictions(free / (divisors * parts[2]), chunk)",
        "is_unique = True",
        "test_lasso::test_columns_that_depend_on_each_other_in_one_training_set",
    ),
    Breakage(
        "lasso: least squares have the singular values that scikit-learn leaves out",
        "is_unique, basic = self._has_rank(rank, values), w",
        "is_unique, basic = True, w",
        "test_lasso::test_least_squares_leave_out_the_singular_values_that_scikit_learn_leaves_out",
    ),
    # Tables.
    Breakage(
        "tables: all rows tell the numbers of each training set",
        "of_sets = list(map(merge_spreads, before, [*behind, nothing]))",
        "of_sets = [[*before][-1]] * chunks.n_chunks",
        "test_steps_before_sums::test_scores_are_those_of_fits"
        " test_steps_before_sums::test_no_model_changes_with_the_rows_that_it_tests",
    ),
    Breakage(
        "tables: categories are encoded once though a training set lacks some",
        "if absent_columns(cut, ",
        "if False and absent_columns(cut, ",
        "test_steps_before_sums::test_what_differs_between_folds_is_fitted",
    ),
    Breakage(
        "tables: models of all folds fill in the same numbers by Newton's method",
        "self._fill, self._common_fill = fill - fill[-1], fill[-1]",
        "self._fill, self._common_fill = fill * 0, fill[-1]",
        "test_steps_before_sums::test_models_that_newton_finds",
    ),
    # Trees of all folds.
    Breakage(
        "forest: a number on an edge goes to the next bin",
        "(edges[first + half - 1] < x)",
        "(edges[first + half - 1] <= x)",
        "test_trees_grown_together::test_a_bin_holds_its_upper_edge",
    ),
    Breakage(
        "forest: rows of a fold leak into its own tree in small nodes",
        "held_of[n_parts] = node.held[member] if node.held[member] > 0 else -1",
        "held_of[n_parts] = 0",
        "test_trees_grown_together::test_each_tree_is_the_one_grown_alone"
        " test_trees::test_a_forest_is_the_trees_grown_alone",
    ),
    Breakage(
        "forest: nodes of min_samples_split rows are leaves",
        "record.n_rows >= min_split[record.tree]",
        "record.n_rows > min_split[record.tree]",
        "test_trees::test_a_node_of_min_samples_split_rows_is_split",
    ),
    Breakage(
        "forest: targets of a fold leak into the exponent of its tree",
        "is_trained = np.arange(n_trees) != tree",
        "is_trained = np.ones(n_trees, bool)",
        "test_trees",
    ),
    Breakage(
        "forest: leaves ignore the weights of classes",
        "return sums[:, -self.n_classes :] * self.factors[trees]",
        "return sums[:, -self.n_classes :]",
        "test_trees",
    ),
    Breakage(
        "forest: means are scaled by the exponents of weights",
        "-self.exponents[trees, 1])",
        "-self.exponents[trees, 0])",
        "test_trees",
    ),
    # Steps.
    Breakage(
        "steps: a scaler divides by n - 1",
        "fitted.var_ = M2 / n_rows",
        "fitted.var_ = M2 / (n_rows - 1)",
        "test_incremental_transformers",
    ),
    Breakage(
        "steps: a step overwrites the rows of others",
        "            return X.copy()\n    return X\n",
        "            return X\n    return X\n",
        "test_unusual_pipelines::test_steps_that_may_overwrite_rows_change_nothing",
    ),
    Breakage(
        "steps: text that is cut by frequencies is counted once for all folds",
        'CountVectorizer: {"max_df": 1.0, "min_df": 1,',
        'CountVectorizer: {"min_df": 1,',
        "test_unusual_pipelines::test_one_row_is_not_a_share_of_1",
    ),
    # What trials share, and the store.
    Breakage(
        "store: models of other orders have one name",
        "phase.start, phase.stop, n_updates, phase.seed or 0, phase.seed is not None",
        "phase.start, phase.stop, n_updates, 0, phase.seed is not None",
        "test_shared_training",
    ),
    Breakage(
        "keys: rows of other weights have one name",
        "arrays = rows.X, rows.y, rows.weights, counts",
        "arrays = rows.X, rows.y, counts",
        "test_names",
    ),
    Breakage(
        "keys: scores of other targets and weights have one name",
        "digest(bound.settings, SCORED_BY, bound.targets[0], *of_metrics)",
        "digest(bound.settings, SCORED_BY, *of_metrics)",
        "test_sample_weights",
    ),
    Breakage(
        "keys: all folds that are fitted have one name",
        "return Key(self.data, fold or self.folds,",
        "return Key(self.data, self.folds,",
        "test_cached_fits",
    ),
    Breakage(
        "sharing: a first pass goes on with the model before it",
        "snapshot(self._state(before) if cached is None else cached[-size:])",
        "snapshot(self._state(before))",
        "test_early_scores",
    ),
    Breakage(
        "store: damaged models are read",
        "length != len(data) or digest != _digest(key, data)",
        "length != len(data)",
        "test_stores",
    ),
    Breakage(
        "store: leases of killed workers last",
        "expires.between(now, now + _MAX_LEASE_FACTOR * LEASE_SECONDS)",
        "expires.between(0.0, now + _MAX_LEASE_FACTOR * LEASE_SECONDS)",
        "test_leases_and_killed_workers",
    ),
    Breakage(
        "store: row updates that a trial has counted count again",
        'if n_ahead and not _is_counted(connection, first["key"], since):',
        "if n_ahead:",
        "test_leases_and_killed_workers",
    ),
    Breakage(
        "store: a block that was just used is dropped first",
        "if lowest.priority > priority:  # it was used since it was queued",
        "if lowest.priority < priority:  # it was used since it was queued",
        "test_cache",
    ),
    Breakage(
        "store: missing values of data frames have no digest",
        "parts = [_digest_array(numbers), _digest_array(values.isna())]",
        "parts = [_digest_array(numbers)]",
        "test_data_digest",
    ),
    # Studies.
    Breakage(
        "study: a failed point of a grid is tried without end",
        "if n_failures > 1}\n        running = open_points",
        "if n_failures > 99}\n        running = open_points",
        "test_grid_sampler",
    ),
    Breakage(
        "study: values that are equal in Python have one code",
        "if counts[code] > 1:\n            while text in used:",
        "if counts[code] > 9:\n            while text in used:",
        "test_grid_values",
    ),
    Breakage(
        "study: differences of errors count rows that got better",
        "np.array([2 * n_worse - n_others, n_others, len(differences)], np.float64)",
        "np.array([n_worse, n_others, len(differences)], np.float64)",
        "test_racing",
    ),
    Breakage(
        "study: forecasts of futility are too sure",
        "sqrt(residual * (1 + (1 + leverage) / n))",
        "sqrt(residual / n)",
        "test_futility",
    ),
    # The winner.
    Breakage(
        "winner: a choice is scored on the rows on which it was made",
        "        oob_means = out_of_bag @ losses.parts.T / (out_of_bag @ losses.shares)[:, "
        "None]\n",
        "        oob_means = draw_means\n",
        "test_honest_scores::test_the_correction_is_that_of_bbc_cv"
        " test_honest_scores::test_of_nothing_but_noise_little_is_left",
    ),
    Breakage(
        "winner: members are scored on the rows on which they were selected",
        "append((parts - losses.parts[0]) @ mask / (losses.shares @ mask))\n",
        "append((parts - losses.parts[0]) @ draw / (losses.shares @ draw))\n",
        "test_honest_scores::test_members_are_those_of_greedy_selection",
    ),
    Breakage(
        "winner: rows of one group are drawn alone",
        '            return self.groups[self.rows], "groups"\n',
        '            return self.rows, "groups"\n',
        "test_honest_scores::test_groups_are_drawn_whole",
    ),
    Breakage(
        "winner: outputs of fits lie in another order than their rows",
        "    order[rows.argsort()] = fitted.argsort()\n    return order\n",
        "    order[fitted.argsort()] = fitted.argsort()\n    return order\n",
        "test_honest_scores::test_outputs_are_those_of_the_folds",
    ),
    Breakage(
        "winner: a step overwrites the rows that are scored",
        '    return part if is_fixed or not hasattr(part, "copy") else part.copy()\n',
        "    return part\n",
        "test_stored_predictions::test_steps_that_overwrite_rows_are_scored_as_without_pooled_scores",
    ),
    Breakage(
        "engines: fits hide an error of ours",
        "        except ValueError as error:\n            if len(work.candidates) > 1:",
        "        except Exception as error:\n            if len(work.candidates) > 1:",
        "test_sums_fallback",
    ),
    Breakage(
        "tables: each training set is taken to have rows of one form",
        "return any(table is not last for table in tables) or bool(",
        "return False and bool(",
        "test_steps_before_sums",
    ),
    Breakage(
        "plans: estimators of other settings share one",
        'return first_key(fixed, encode, lasting_key) or b""',
        "return type(fixed).__name__.encode()",
        "test_plan_reuse",
    ),
    Breakage(
        "intervals: the variance of folds is that of a population",
        "    deviation = float(np.std(by_fold, ddof=1))\n",
        "    deviation = float(np.std(by_fold))\n",
        "test_intervals::test_nadeau_bengio",
    ),
    Breakage(
        "intervals: test sets that share rows count as independent",
        "return deviation * sqrt(1 / by_fold.size + overlap)",
        "return deviation * sqrt(1 / by_fold.size)",
        "test_intervals::test_nadeau_bengio_knows_the_sizes_of_a_splitter",
    ),
    Breakage(
        "intervals: a bound for one fold has the rows of all",
        "half = width * sqrt(log(2 / (1 - level)) / (2 * n_rows))",
        "half = width * sqrt(log(2 / (1 - level)) / (2 * n_rows * scores.tested.n_folds))",
        "test_intervals::test_hoeffding_counts_the_rows_of_one_fold",
    ),
    Breakage(
        "search: means that differ by rounding have ranks of their own",
        "are_apart = larger - smaller > _ROUNDING * np.maximum(np.abs(larger), np.abs(smaller))",
        "are_apart = larger > smaller",
        "test_search_cv::test_ranks_by_the_gaps_between_means",
    ),
    Breakage(
        "choice: trials within two standard errors are near",
        "if abs(d.mean) <= _ROUNDING * d.std_error]",
        "if abs(d.mean) <= 2 * d.std_error]",
        "test_selection",
    ),
    Breakage(
        "routing: scores have no weights unless they are given twice",
        "            self._score_weights = self._weights\n",
        "            self._score_weights = None\n",
        "test_engine_contract::TestExact::test_weights",
    ),
    Breakage(
        "predictions: rows without a prediction pass",
        "return is_partition and len(self.plan.repeats) == 1",
        "return isinstance(cut, Folds) and len(self.plan.repeats) == 1",
        "test_fit_method::test_predictions_need_one_test_set_for_each_row",
    ),
    Breakage(
        "scores: a fold of one class has a score",
        "    are_undefined = np.isnan(scores) & _have_weight(weights, begins)\n",
        "    are_undefined = np.isnan(scores) & False\n",
        "test_fold_metrics",
    ),
    Breakage(
        "exact: a matrix is taken for regular unless it has a small pivot",
        "        if not alphas.all() and is_singular(self.gram):\n",
        "        if False:\n",
        "test_sums_equations::test_dependent_columns_have_no_solution_without_a_penalty",
    ),
    # After the study.
    Breakage(
        "after the study: outputs of a fold are those of another order",
        "return in_given_order(outputs, "
        "run.request.cross_validation.tested(run.method_name).rows)",
        "return outputs",
        "test_out_of_fold::test_predictions_are_those_of_fits_on_equal_folds",
    ),
    Breakage(
        "after the study: outputs of another dtype are read from the store",
        "return stored.view(empty.dtype).reshape(empty.shape)",
        "return stored.view(empty.dtype)[::-1].reshape(empty.shape)",
        "test_out_of_fold::test_another_process_finds_outputs_in_the_store",
    ),
    Breakage(
        "after the study: a final estimator is trained on the fold that scores it",
        "        train = cut.split(chunk).train_rows()\n        params = {} if weights is None",
        "        train = np.arange(len(y))\n        params = {} if weights is None",
        "test_stacking::test_the_score_is_that_of_final_estimators_on_other_folds",
    ),
    Breakage(
        "after the study: outputs of other folds are read from the store",
        'return " ".join([request.cross_validation.digest(request.scoring), *keys])',
        'return " ".join(keys[:0])',
        "test_out_of_fold::test_outputs_of_other_rows_or_folds_are_not_read_from_the_store",
    ),
    Breakage(
        "after the study: rounding excludes classes whose score equals the quantile",
        "rounding = float(np.finfo(outputs.dtype).eps * np.abs(outputs).max())",
        "rounding = 0.0",
        "test_conformal::test_equal_probabilities_are_in_the_set",
    ),
    Breakage(
        "after the study: the final estimator takes y by its index",
        "y = np.ravel(data.y) if classes is None else",
        "y = data.y_given if classes is None else",
        "test_stacking::test_the_index_of_a_series_does_not_matter",
    ),
    Breakage(
        "after the study: each test of a frame uses the models of the first repeat",
        "        n_earlier += cut.n_folds\n",
        "        n_earlier += 0\n",
        "test_out_of_fold::test_frames_of_joint_methods_have_each_test",
    ),
    Breakage(
        "after the study: thresholded scores are those of the middle threshold",
        "return float(scores[find_best(scores, np.ones(len(scores), bool))])",
        "return float(scores[len(scores) // 2])",
        "test_thresholded::test_no_threshold_has_a_better_score",
    ),
    Breakage(
        "after the study: intervals use the model of another fold",
        "of_rows = self.models.predict(_rows(X, start, stop)).T[:, calibration.folds]",
        "of_rows = self.models.predict(_rows(X, start, stop)).T[:, calibration.folds - 1]",
        "test_conformal::test_intervals_are_those_of_the_formula",
    ),
    Breakage(
        "after the study: intervals are those without a further row",
        "index = ceil(round(level * (n + 1), 9)) - 1",
        "index = ceil(round(level * n, 9)) - 1",
        "test_conformal::test_intervals_are_those_of_the_formula",
    ),
    Breakage(
        "after the study: a large group counts more than a small one",
        "return 1 / (counts[numbers] * (len(counts) + 1))",
        "return np.full(len(numbers), 1 / (len(numbers) + 1))",
        "test_conformal::test_groups_are_units",
    ),
    Breakage(
        "after the study: leave-one-out ridge keeps the mean of all rows",
        "shares = weights / (self._weight - weights) if source.fit_intercept else 0.0",
        "shares = 0.0 * weights",
        "test_fold_models::test_each_model_gives_the_predictions_that_were_scored",
    ),
    Breakage(
        "after the study: a scaled column is multiplied twice",
        "coef = coef if scaler.scale_ is None else coef * scaler.scale_",
        "coef = coef if scaler.scale_ is None else coef * scaler.var_",
        "test_engine_contract::TestNewton::test_fold_models_equal_fits",
    ),
    Breakage(
        "kernels: the models of folds are those of the fold before",
        "            if not tree.is_sum:\n                tree.sum += tree.model_size\n",
        "            if not tree.is_sum and first:\n                tree.sum += tree.model_size\n",
        "test_fold_models::test_each_model_gives_the_predictions_that_were_scored",
    ),
    Breakage(
        "after the study: the calibrator sees predictions of rows in training",
        "known = KnownOutputs(response_method, outputs.astype(np.float64), None)",
        "known = KnownOutputs(response_method, "
        "getattr(fitted, response_method)(data.X_given), None)",
        "test_calibration::test_they_are_those_of_scikit_learn",
    ),
    Breakage(
        "newton: L1 penalties do not follow the scale of the columns",
        "np.multiply.outer(strengths, scales / objective.scale)",
        "np.multiply.outer(strengths, np.ones_like(scales))",
        "test_newton_l1::test_folds_are_those_of_optimal_models",
    ),
    Breakage(
        "newton: the diagonal blocks of a shared Hessian lack a factor",
        "weights[:, i] * p * np.maximum(1 - p, 0)",
        "weights[:, i] * p",
        "test_newton_many_classes::test_hessians_are_those_of_each_pair_of_classes",
    ),
    Breakage(
        "kernels: coefficients are not shrunk by their L1 penalty",
        "z = z - l1[j] / h if z > l1[j] / h else",
        "z = z if z > l1[j] / h else",
        "test_newton_l1::test_steps_meet_the_optimality_conditions",
    ),
    # Kernel machines.
    Breakage(
        "kernel machines: folds start with the coefficients of their test rows",
        "coefs = np.minimum(np.maximum(start.coefs, C * self._lower), C * self._upper)",
        "coefs = start.coefs",
        "test_dual::test_the_test_rows_have_no_effect_on_their_models "
        "test_engine_contract::TestKernel::test_no_row_reaches_the_model_that_tests_it",
    ),
    Breakage(
        "kernel machines: the kernel depends on the test rows",
        "self.compute_gram(estimator, take_rows(X, order), X_train, rows, memory)",
        "self.compute_gram(estimator, take_rows(X, order), X, rows, memory)",
        "test_dual::test_predictions_equal_those_of_fits "
        "test_engine_contract::TestKernel::test_no_row_reaches_the_model_that_tests_it",
    ),
    Breakage(
        "kernel machines: class weights of all rows",
        "compute_class_weight(class_weight, classes=self._classes, y=labels)",
        "compute_class_weight(class_weight, classes=self._classes, y=self._classes[codes])",
        "test_dual::test_predictions_equal_those_of_fits",
    ),
    Breakage(
        "kernel machines: coefficients of ridge regression without weights",
        "@ (coef * roots[train, None])",
        "@ (coef * np.ones_like(roots[train, None]))",
        "test_ridge::test_weights",
    ),
    Breakage(
        "kernel machines: a wrong transformation to a band matrix",
        "w -= 0.5 * (w @ vt.T @ t) @ vt",
        "w -= 0.25 * (w @ vt.T @ t) @ vt",
        "test_ridge::test_blocks_of_rows test_ridge::test_several_targets_and_strips_of_rows",
    ),
    Breakage(
        "kernel machines: the mean target of all rows",
        "mean = targets[train].mean(axis=0)\n            yield of_split",
        "mean = targets.mean(axis=0)\n            yield of_split",
        "test_dual::test_predictions_equal_those_of_fits "
        "test_engine_contract::TestKernel::test_no_row_reaches_the_model_that_tests_it",
    ),
    Breakage(
        "kernel machines: the default kernel of a Gaussian process is not optimized",
        "if estimator.optimizer is not None and (kernel is None or kernel.n_dims):",
        "if estimator.optimizer is not None and kernel is not None and kernel.n_dims:",
        "test_dual::test_other_settings_are_refitted",
    ),
    Breakage(
        "kernels: an intercept without epsilon",
        "total += v.g[i] + v.up[i]",
        "total += v.g[i]",
        "test_dual::test_predictions_equal_those_of_fits",
    ),
    Breakage(
        "kernels: test rows change the tolerance of a dual problem",
        "if all.lower[i] < all.upper[i]:         # test rows have no effect",
        "if True:",
        "test_dual::test_rows_without_a_coefficient_have_no_effect",
    ),
    Breakage(
        "kernels: variables of one fold stay in the factor for the next fold",
        "self.factor.n = self.n_kept_free",
        "pass",
        "test_svm::test_bits_do_not_depend_on_threads_and_kept_solvers",
    ),
    Breakage(
        "kernels: rows of Gram matrices are read before they are computed",
        "self.require(v, &j, 1)",
        "pass",
        "test_svm::test_rows_of_gram_matrices_are_computed_before_they_are_read",
    ),
    Breakage(
        "kernels: a product is subtracted once from squared distances",
        "distance = (square + squares[j]) - 2 * products[j]",
        "distance = (square + squares[j]) - products[j]",
        "test_dual::test_predictions_equal_those_of_fits",
    ),
    Breakage(
        "accelerated: a solver without a limit of iterations is said not to converge",
        "n_iter is None or max_iter in (None, -1):  # -1 is no limit",
        "n_iter is None or max_iter is None:",
        "test_accelerate::test_support_vector_machines_are_searched_by_shared_gram_matrices",
    ),
]


def places_of(text: str, root: Path) -> list[Path]:
    """Return the files of the package in which a text occurs, as often as it does."""
    found = []
    for path in sorted((root / "optuna_treecv").rglob("*")):
        if path.suffix in KINDS:
            found += [path] * path.read_text().count(text)
    return found


def run(*command: object) -> None:
    """Run a command; end with what it has printed if it fails."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.args}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")


def copy_if_other(source: str, target: str) -> None:
    """Copy a file, unless the copy is there; one that was left broken gets a new time."""
    if not Path(target).exists() or not cmp(source, target, shallow=False):
        shutil.copyfile(source, target)


class Copy:
    """A copy of the tree, with kernels of its own, and an environment that imports it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        ignored = shutil.ignore_patterns("build", "_build", "gallery", "*.so", "__pycache__", ".*")
        shutil.copytree(ROOT, self.root, False, ignored, copy_if_other, dirs_exist_ok=True)
        for path in (self.root / "optuna_treecv").rglob("*"):
            if path.suffix in KINDS and not (ROOT / path.relative_to(self.root)).exists():
                path.unlink()  # it was there in the run before
        # As deep as the build of an installation, so that ccache finds what that has compiled.
        self._build = self.root / "build" / "kernels"
        # Paths in .pth files are imported from, but .pth files in these are not read: so the copy
        # takes the place of an editable installation, also in the processes that tests start.
        venv = folder / "venv"
        run(sys.executable, "-m", "venv", "--without-pip", venv)
        self.python = venv / "bin" / "python"
        site = sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)})
        (Path(site) / "copy.pth").write_text(f"{self.root}\n{sysconfig.get_path('purelib')}\n")
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "Python_EXECUTABLE": sys.executable,
            "CMAKE_C_COMPILER_LAUNCHER": "ccache" if shutil.which("ccache") else "",
        }
        source = self.root / "optuna_treecv" / "_kernels"
        defined = (f"-D{name}={value}" for name, value in options.items())
        run("cmake", "-G", "Ninja", "-S", source, "-B", self._build, *defined)
        self.compile()
        run(self.python, "-m", "pytest", "--version")  # without it, each test would be red

    def compile(self) -> None:
        """Compile what has changed."""
        run("cmake", "--build", self._build)
        run("cmake", "--install", self._build, "--prefix", self.root)

    def is_red(self, test: str) -> bool:
        """Return whether a test, or one of a file, fails; not if it is not there."""
        file, _, name = test.partition("::")
        (path,) = self.root.glob(f"tests/**/{file}.py")
        selected = str(path.relative_to(self.root)) + (f"::{name}" if name else "")
        command = [self.python, "-m", "pytest", "-qx", "-p", "no:cacheprovider", selected]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        if done.returncode > 1:
            print(f"{selected} could not run:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.returncode == 1 or done.returncode < 0  # a broken kernel may crash

    def differs(self, words: str) -> bool:
        """Return whether lines of the record that have one of these words are others."""
        command = [self.python, "tests/record.py", "--check", *words.split()]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        return done.returncode != 0

    def green_tests(self, breakage: Breakage, path: Path, record: str | None) -> list[str]:
        """Break a file; return which of the tests that must be red are not."""
        whole = path.read_text()
        path.write_text(whole.replace(breakage.old, breakage.new))
        try:
            self.compile()  # also the kernel that the breakage before has left broken
            if record is not None:
                return [] if self.differs(record) else ["the record"]
            return [test for test in breakage.tests.split() if not self.is_red(test)]
        finally:
            path.write_text(whole)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help="words in the names of breakages; default: all")
    parser.add_argument("--check", action="store_true", help="run no tests")
    parser.add_argument("--folder", help="for the copy, which the next run uses again")
    parser.add_argument("--record", metavar="WORDS", help="compare the record in place of tests")
    arguments = parser.parse_args()
    some = [
        one
        for one in BREAKAGES
        if not arguments.words or any(word in one.name for word in arguments.words)
    ]
    n_bad = 0
    missing = {one.name: len(places_of(one.old, ROOT)) for one in some}
    for name, n_places in missing.items():
        if n_places != 1:
            n_bad += 1
            print(f"NO LONGER APPLIES, its text occurs {n_places} times: {name}", flush=True)
    if not arguments.check:
        with tempfile.TemporaryDirectory() as folder:
            copied = Copy(Path(arguments.folder or folder).resolve())
            for one in some:
                if missing[one.name] != 1:
                    continue
                begin = monotonic()
                (path,) = places_of(one.old, copied.root)
                green = copied.green_tests(one, path, arguments.record)
                n_bad += bool(green)
                verdict = f"NOT NOTICED by {', '.join(green)}" if green else "red"
                print(f"{verdict}: {one.name} ({monotonic() - begin:.0f} s)", flush=True)
    print(f"{len(some) - n_bad} of {len(some)} breakages are as they must be.")
    return n_bad > 0


if __name__ == "__main__":
    sys.exit(main())
